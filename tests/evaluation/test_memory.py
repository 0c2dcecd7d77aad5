"""Input larger than memory: memory use does not grow with the file."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

STATUS = Path("/proc/self/status")
pytestmark = pytest.mark.skipif(
    not STATUS.exists(), reason="memory is read from /proc, which this system does not have"
)

MEGABYTE = 2**20
# Small limits make files of some megabytes large. Pages of the mapped file are not counted: the system takes them back.
PROGRAM = """
import sys
from equipoise.evaluation import evaluate, meters, split
from equipoise.predictions import open_predictions, source

def held(samples):
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    seen.append(1024 * int(line.split()[1]))

source.CHUNK_ELEMENTS, meters.KEPT, split.FIT_SCORES = 100_000, 100_000, 100_000
seen = []
found = evaluate(open_predictions(sys.argv[1]), progress=held)
print(found.samples, max(seen))
"""


def peak(path) -> tuple[int, int]:
    """Number of samples that a process read, and its peak memory in bytes."""
    given_back = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed leaves the process at once
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True, env=given_back
    )
    samples, held = map(int, ran.stdout.split())
    return samples, held


def folder_of(path, shape, targets):
    """A folder of zeros, as sparse files."""
    path.mkdir()
    np.lib.format.open_memmap(path / "logits.npy", "w+", np.float32, shape)
    np.lib.format.open_memmap(path / "targets.npy", "w+", np.int8, targets)
    return path


@pytest.mark.parametrize(
    ("shape", "targets", "samples"),
    [
        ((50,), (), 60_000),
        pytest.param((50,), (50,), 60_000, marks=pytest.mark.slow),
        ((5, 100, 100), (100, 100), 60),
    ],
)
def test_memory_does_not_grow_with_the_file(tmp_path, shape, targets, samples):
    counts = samples // 10, samples
    folders = [folder_of(tmp_path / str(count), (count, *shape), (count, *targets)) for count in counts]
    sizes = [(folder / "logits.npy").stat().st_size for folder in folders]
    assert sizes[1] - sizes[0] > 10 * MEGABYTE
    (few, base), (many, held) = map(peak, folders)
    assert (few, many) == counts
    assert held - base < 5 * MEGABYTE
