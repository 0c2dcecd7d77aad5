"""Runs that share a process: each has the numbers that it has alone, and failures stay apart."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch

from equipoise.train.company import Company, SharedProcess, company
from equipoise.train.folder import RunFolder
from equipoise.train.run import run
from equipoise.train.spec import RunSpec
from tests.e2e.commands import assert_same_run

CPU = torch.device("cpu")
RUNS = {
    "dropout": {"model_options": {"dropout": 0.3, "hidden": [32]}, "loss": "focal"},
    "recall": {"loss": "recall(momentum=0.9)", "optimizer": "sgd", "lr": 0.05, "ema": 0.9},
    "method": {"method": "crt(epochs=2)"},
    "augmented": {"model": "resnet32", "augment": "crop:1,erase:0.3", "sampler": "balanced", "epochs": 2},
}


def spec(**settings):
    return RunSpec(**{"data": "digits-lt", "model": "mlp", "epochs": 3, "logger": "none"} | settings)


def draws():
    return random.random(), np.random.random(), torch.rand(()).item()


def test_alone_nothing_is_shared():
    alone = company()
    assert type(alone) is Company
    assert alone.share("numbers", 1, lambda: [1]) is not alone.share("numbers", 1, lambda: [1])


def test_members_draw_what_they_draw_alone():
    shared, turns = SharedProcess(), []

    def member(seed):
        with shared.member():
            assert company() is shared
            random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
            drawn = []
            for _ in range(20):
                turns.append(seed)
                drawn.append(draws())
                shared.wait(CPU)
            return drawn

    alone = [member(seed) for seed in range(3)]
    turns.clear()
    start = threading.Barrier(3)

    def member_with_others(seed):
        start.wait()
        return member(seed)

    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(member_with_others, range(3)))
    assert together == alone
    assert turns != sorted(turns)  # they took turns
    assert shared.size == 0


def test_generators_of_the_process_are_restored():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with SharedProcess().member():
        torch.rand(100)
    assert torch.equal(torch.rand(2), expected)


def test_the_last_of_a_kind_is_kept():
    shared, made = SharedProcess(), []
    for key in (1, 1, 2, 1):
        assert shared.share("data", key, lambda key=key: made.append(key) or key) == key
    assert shared.share("other", 5, lambda: 5) == 5
    assert made == [1, 2, 1]


def test_an_error_of_a_member_is_its_own():
    shared = SharedProcess()

    def fails():
        with shared.member():
            shared.wait(CPU)
            raise ValueError("no")

    with ThreadPoolExecutor(2) as threads:
        wrong, right = threads.submit(fails), threads.submit(lambda: shared.share("a", 1, lambda: 7))
        assert isinstance(wrong.exception(), ValueError)
        assert right.result() == 7
    assert shared.size == 0
    with shared.member():
        assert shared.size == 1


@pytest.mark.slow
def test_runs_have_the_same_results_alone_and_together(tmp_path):
    for name, settings in RUNS.items():
        run(spec(**settings), tmp_path / "alone" / name)
    shared = SharedProcess()
    seen = []

    def member(name):
        with shared.member():
            run(spec(**RUNS[name]), tmp_path / "together" / name, say=lambda line: seen.append(name))

    threads = [threading.Thread(target=member, args=(name,)) for name in RUNS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    changes = sum(one != other for one, other in pairwise(seen))
    assert changes > len(RUNS)  # they took turns
    for name in RUNS:
        assert_same_run(RunFolder(tmp_path / "together" / name), RunFolder(tmp_path / "alone" / name))
