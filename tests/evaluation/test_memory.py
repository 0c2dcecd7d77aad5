"""Input larger than memory: what is held does not grow with the file."""

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
print(found["samples"], max(seen))
"""


def peak(path) -> tuple[int, int]:
    """Samples that a process read and the most memory that it held, in bytes."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True)
    samples, held = map(int, ran.stdout.split())
    return samples, held


def folder_of(path, shape, targets):
    """A folder of zeros, which take no place on the disk."""
    path.mkdir()
    np.lib.format.open_memmap(path / "logits.npy", "w+", np.float32, shape)
    np.lib.format.open_memmap(path / "targets.npy", "w+", np.int8, targets)
    return path


@pytest.mark.parametrize(("places", "samples"), [((), 100_000), ((100, 100), 100)])
def test_what_is_held_does_not_grow_with_the_file(tmp_path, places, samples):
    classes = 50 if not places else 5
    folders = [
        folder_of(tmp_path / str(part), (samples // part, classes, *places), (samples // part, *places))
        for part in (15, 1)
    ]
    sizes = [(folder / "logits.npy").stat().st_size for folder in folders]
    assert sizes[1] - sizes[0] > 17 * MEGABYTE
    (few, base), (many, held) = map(peak, folders)
    assert (few, many) == (samples // 15, samples)
    assert held - base < 8 * MEGABYTE
