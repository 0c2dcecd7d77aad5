"""Calls on a cluster, with a stand-in for Ray that does them here and now; ``tests/e2e`` starts a real one."""

import functools
import sys
from types import SimpleNamespace

import pytest

from equipoise.comparison.jobs import Job
from equipoise.comparison.ray_jobs import RayJobs
from tests.comparison import calls


class LostError(Exception):
    """What Ray raises where a process or its machine is gone."""


def lose():
    raise KeyboardInterrupt


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """What Ray was asked for."""
    asked = SimpleNamespace(under_way=[], resources={}, options=None, address=None, open=False)

    def init(address, **_):
        asked.address, asked.open = address, True

    def remote(**options):
        asked.options = options
        return lambda function: SimpleNamespace(remote=functools.partial(functools.partial, function))

    def wait(references, num_returns, timeout):
        asked.under_way.append(len(references))
        return references[:num_returns], references[num_returns:]

    def get(reference):
        try:
            return reference()
        except KeyboardInterrupt:
            raise LostError("\n  the node is gone\nand more") from None

    ray = SimpleNamespace(
        init=init,
        remote=remote,
        wait=wait,
        get=get,
        cluster_resources=lambda: asked.resources,
        shutdown=lambda: setattr(asked, "open", False),
        exceptions=SimpleNamespace(RayError=LostError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BEGUN", "0")
    return asked


def outcomes(asked, **options):
    with RayJobs("local", calls.begin, **options) as jobs:
        return {outcome.name: outcome for outcome in jobs.outcomes(asked)}


@pytest.mark.parametrize("most", [None, 1])
def test_a_failure_costs_one_call(cluster, most):
    wanted = [
        Job("second", calls.square, (3,), after="first"),
        Job("first", calls.square, (2,)),
        Job("wrong", calls.complain, (ValueError, "too much")),
        Job("lost", lose),
    ]
    actual = outcomes(wanted, most=most)
    assert {name: one.value[0] for name, one in actual.items() if one.error is None} == {"first": 4, "second": 9}
    assert list(actual).index("first") < list(actual).index("second")
    assert actual["wrong"].error == "too much"
    assert "what it said before" in actual["wrong"].log
    assert actual["lost"].error == "the cluster lost the run: the node is gone"
    assert max(cluster.under_way) == (most or 3)  # the second waits for the first
    assert cluster.address == "local"
    assert not cluster.open


@pytest.mark.parametrize(("resources", "on_gpus", "gpus"), [({}, None, 0), ({"GPU": 2.0}, None, 1), ({}, True, 1)])
def test_a_call_has_a_gpu_where_the_cluster_has_any(cluster, resources, on_gpus, gpus):
    cluster.resources = resources
    outcomes([], on_gpus=on_gpus)
    assert cluster.options == {"num_cpus": 1, "num_gpus": gpus, "max_retries": 0}


def test_a_machine_without_the_folder(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.comparison.ray_jobs.Path.cwd", lambda: tmp_path / "elsewhere")
    (actual,) = outcomes([Job("one", calls.square, (2,))]).values()
    assert actual.error.endswith(
        f"the machines of the cluster must share the folder {tmp_path / 'elsewhere'}, found none there"
    )


def test_a_cluster_that_is_not_there(cluster, monkeypatch):
    def refuse(address, timeout):
        raise ConnectionRefusedError(f"nobody at {address[0]}")

    monkeypatch.setattr("socket.create_connection", refuse)
    with pytest.raises(
        ValueError, match=r"--ray must be the address of a running cluster, got 'ray://\[::1\]:1': nobody"
    ):
        RayJobs("ray://[::1]:1", calls.begin).__enter__()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match="ray"):
        RayJobs("auto", calls.begin).__enter__()
