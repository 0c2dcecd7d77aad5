"""Runs of a comparison that share a process: the results of separate processes, and failures stay apart."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from equipoise.comparison import compare as module
from equipoise.comparison.compare import compare, prepare
from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.jobs import LocalJobs
from equipoise.comparison.spec import CompareSpec
from tests.e2e.commands import assert_same_run

pytestmark = pytest.mark.slow

SETTINGS = {
    "data": "digits-lt",
    "model": "mlp",
    "model_options": {"hidden": [32], "dropout": 0.2},
    "epochs": 12,
    "seeds": 2,
    "losses": "ce focal recall(momentum=0.9) balanced-softmax",
    "augment": "crop:1",
    "logger": "none",
    "accelerator": "cpu",
}


@pytest.fixture(scope="module")
def separate(tmp_path_factory):
    """The comparison in separate processes."""
    return compare(CompareSpec(**SETTINGS), tmp_path_factory.mktemp("separate") / "out", jobs=2)


@pytest.fixture
def shared(monkeypatch):
    """The pool of one process for eight runs."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    jobs = LocalJobs(1, prepare, together=8)
    monkeypatch.setattr(module, "_jobs", lambda *arguments: jobs)
    return jobs


def assert_same(one: ComparisonFolder, other: ComparisonFolder) -> None:
    """Every run of the first is in the second, with the same results."""
    others = {run.name: run for run in other.runs}
    for run in one.runs:
        assert_same_run(others[run.name].folder, run.folder)


def test_results_are_those_of_separate_processes(shared, separate, tmp_path):
    together = compare(CompareSpec(**SETTINGS), tmp_path / "out")
    assert_same(separate, together)
    assert together.failures == []


def test_after_a_kill_every_run_is_resumed(shared, separate, tmp_path):
    folder = ComparisonFolder(tmp_path / "out")
    killed = []

    def kill():
        while len(list(folder.path.glob("runs/*.unfinished/resume.ckpt"))) < 5:
            time.sleep(0.01)
        killed.append(shared.processes[0].process.pid)
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    compare(CompareSpec(**SETTINGS), folder.path)
    thread.join()
    assert killed
    assert folder.failures == []
    assert_same(separate, folder)
    logs = [(run.folder.path / "train.log").read_text() for run in folder.runs]
    assert sum("resuming an earlier attempt" in log for log in logs) >= 5


def test_a_run_with_a_loss_that_is_not_finite_fails_alone(shared, separate, tmp_path):
    spec = CompareSpec(**SETTINGS | {"losses": f"{SETTINGS['losses']} ce(lr=1e30)"})
    together = compare(spec, tmp_path / "out")
    assert_same(separate, together)
    assert {failure.loss for failure in together.failures} == {"ce(lr=1e+30)"}
    assert all("the loss became" in failure.error for failure in together.failures)
    logs = [file.read_text() for file in (together.path / "failures").glob("*.log")]
    assert len(logs) == 2
    assert all(log.count("the loss became") == 1 for log in logs)


def test_a_run_that_ends_its_process_fails_alone(shared, separate, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import os, torch\n"
        "class Fatal(torch.nn.CrossEntropyLoss):\n"
        "    def set_epoch(self, epoch):\n"
        "        if epoch == 3:\n"
        "            os._exit(3)\n"
        "def fatal():\n"
        "    return Fatal()\n"
    )
    spec = CompareSpec(**SETTINGS | {"losses": f"{SETTINGS['losses']} {tmp_path}/mine.py:fatal", "seeds": 1})
    together = compare(spec, tmp_path / "out")
    assert [failure.seed for failure in together.failures] == [0]
    assert "fatal" in together.failures[0].loss
    assert "ended with status 3" in together.failures[0].error
    finished = {run.name for run in together.finished}
    assert finished == {run.name for run in separate.runs if run.seed == 0}
