"""Run the command line as a user does."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.train.folder import RunFolder

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | {
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "200",
}
TIMES = ("seconds", "seconds_per_step", "started", "finished")


@dataclass(frozen=True)
class Finished:
    """A finished command."""

    status: int
    out: str
    err: str


def flags(options):
    """``val_share=0.5`` as ``--val-share 0.5``, ``cache=True`` as ``--cache``, a list as a flag for each."""
    words = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            words += [flag] if one is True else [flag, str(one)]
    return words


class Commands:
    """Runs ``equipoise`` in forks of one warm process, one command at a time."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, str(Path(__file__).with_name("warm.py"))]
        self.warm = subprocess.Popen(command, env=ENVIRONMENT, **pipes)
        assert self.warm.stdout.readline() == "ready\n"
        self.running = None

    def __call__(self, folder, *arguments, largest_file=None, **options):
        """Run a command in the working folder ``folder`` and return it when finished."""
        self.start(folder, *arguments, largest_file=largest_file, **options)
        return self.wait()

    def start(self, folder, *arguments, largest_file=None, **options):
        """Start a command; return its process id, which is also that of its process group."""
        self.end()
        self.output_files = {"out": str(folder / "stdout.txt"), "err": str(folder / "stderr.txt")}
        words = [*map(str, arguments), *flags(options)]
        command = {"folder": str(folder), "arguments": words, "largest_file": largest_file, **self.output_files}
        self.warm.stdin.write(json.dumps(command) + "\n")
        self.warm.stdin.flush()
        self.running = int(self.warm.stdout.readline())
        return self.running

    def wait(self):
        """Wait for the last command and return its result."""
        status = int(self.warm.stdout.readline())
        self.running = None
        return Finished(status, Path(self.output_files["out"]).read_text(), Path(self.output_files["err"]).read_text())

    def train(self, folder, *arguments, out="run", **options):
        """Train a run that must finish."""
        finished = self(folder, "train", *arguments, out=out, **options)
        assert finished.status == 0, finished.err
        run = RunFolder(folder / out)
        assert run.finished
        assert not run.draft.exists()
        return run

    def end(self):
        """End a command that a failed test left running."""
        if self.running is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.running, signal.SIGKILL)
            self.wait()

    def close(self):
        self.end()
        self.warm.stdin.close()
        self.warm.wait()


def killed(equipoise, folder, when, **options):
    """The unfinished run of a command that is killed once ``when(run)`` is true."""
    run = RunFolder(folder / "run")
    process = equipoise.start(folder, "train", out="run", **options)
    end = time.monotonic() + 240
    while not when(run):
        assert time.monotonic() < end
        time.sleep(0.001)
    os.killpg(process, signal.SIGKILL)
    assert equipoise.wait().status == -signal.SIGKILL
    assert not run.finished
    return run


def rows_there(number):
    """Whether the history has this number of rows."""

    def there(run):
        history = run.draft / "history.jsonl"
        return history.is_file() and history.read_text().count("\n") >= number

    return there


def rows(run):
    """The history without times."""
    return [{key: value for key, value in row.to_json().items() if key not in TIMES} for row in run.history()]


def without_files(results):
    """Results without file names."""
    return {
        split: {key: value for key, value in evaluation.items() if key != "file"}
        for split, evaluation in results.to_json().items()
    }


def predictions(run, split):
    """Arrays of the predictions of a split."""
    with np.load(run.predictions(split)) as file:
        return dict(file)


def assert_same_run(first, second):
    """Rows, results, predictions and weights are bit-identical."""
    assert rows(first) == rows(second)
    assert without_files(first.results) == without_files(second.results)
    for split in ("val", "test"):
        one, other = predictions(first, split), predictions(second, split)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert first.checkpoint.read_bytes() == second.checkpoint.read_bytes()


def contents(folder):
    """Content and modification time of each file in a folder."""
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.rglob("*") if file.is_file()}
