"""Run tests against mutants, each in a process of its own that is forked with torch already imported.

A process compiles the changed source in place of the file, so nothing is written beside the sources. It does not
return from here; its exit status is that of pytest.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from types import CodeType

import hypothesis  # noqa: F401
import numpy as np  # noqa: F401
import pytest
import scipy.optimize
import scipy.stats  # noqa: F401
import torch
import torchmetrics  # noqa: F401

__all__ = ["PASSED", "PYTEST", "TIMED_OUT", "Job", "run_all"]

PASSED, TIMED_OUT = 0, -1
WITHOUT = ("cacheprovider", "logging", "threadexception", "unraisableexception", "xdist")
PYTEST = ("-x", "-q", "-m", "not (slow or gpu)", "--tb=no", "--assert=plain", *(f"-pno:{name}" for name in WITHOUT))


@dataclass(frozen=True)
class Job:
    """Tests to run against a file whose source is replaced.

    Args:
        file: the file.
        source: that replaces it, None for the file as it is.
        tests: files of tests, one after the other until one fails, so that those behind it are not even collected.
        timeout: in seconds.
        options: of pytest.
    """

    file: Path
    source: bytes | None
    tests: tuple[str, ...]
    timeout: float
    options: tuple[str, ...] = ()


def run_all(jobs: list[Job], workers: int) -> Iterator[tuple[int, int, float]]:
    """Number, status and seconds of each job, as they end: ``PASSED``, ``TIMED_OUT`` or what pytest returned."""
    torch.set_num_threads(1)
    gc.freeze()  # what is imported by now is not looked through in every process
    fork = get_context("fork")
    waiting = list(enumerate(jobs))[::-1]
    running: dict[int, tuple] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                number, job = waiting.pop()
                folder = tempfile.mkdtemp(prefix="mutant-")
                process = fork.Process(target=_run, args=(job, folder))
                process.start()
                running[process.sentinel] = (number, process, folder, time.monotonic())
            ended = connection.wait(list(running), timeout=0.2)
            for sentinel, (number, process, folder, since) in list(running.items()):
                seconds = time.monotonic() - since
                if sentinel in ended or seconds > jobs[number].timeout:
                    del running[sentinel]
                    yield number, _end(process, folder, timed_out=sentinel not in ended), seconds
    finally:
        for _, process, folder, _ in running.values():
            _end(process, folder, timed_out=True)


def _end(process, folder: str, *, timed_out: bool) -> int:
    """Status of a process; it and what it started are gone then."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    process.join()
    shutil.rmtree(folder, ignore_errors=True)
    return TIMED_OUT if timed_out else process.exitcode


def _run(job: Job, folder: str) -> None:
    os.setsid()
    os.environ.update(TMPDIR=folder, EQUIPOISE_REPEATABLE="1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    tempfile.tempdir = None
    output = os.open(Path(folder, "output"), os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if job.source is not None:
        _replace(job.file, compile(job.source, job.file, "exec", dont_inherit=True))
    for test in job.tests:
        parts = Path(test).with_suffix("").parts
        if parts[0] == "src":  # pytest would import it after its package, and so twice; pickle refuses such classes
            importlib.import_module(".".join(parts[1:]))
    for test in job.tests:
        status = pytest.main([*PYTEST, *job.options, test])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            os._exit(status)
    os._exit(PASSED)


def _replace(file: Path, code: CodeType) -> None:
    """Importing ``file`` runs ``code``."""
    original: Callable = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> CodeType:
        return code if Path(self.path) == file else original(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code
