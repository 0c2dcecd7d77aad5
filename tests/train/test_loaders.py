"""Loaders: order, parts of processes, dtypes, device memory, worker processes and their errors."""

from __future__ import annotations

import gc
import math
import os
import pickle
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close

from equipoise.data import Arrays, DataError, FileImages, Masks, Texts, digit_maps, sampler_for
from equipoise.data.files import path_array
from equipoise.tasks import Task
from equipoise.train import loaders
from equipoise.train.loaders import evaluation_loader, fits, labels_for_sampling, training_loader

CPU = torch.device("cpu")


def numbered(count, labels=None):
    """Features that identify their sample."""
    return Arrays(np.arange(count, dtype=np.float32)[:, None], np.zeros(count, np.int64) if labels is None else labels)


def samples(loader):
    """Numbers of the samples in each batch."""
    return [inputs[:, 0].int().tolist() for inputs, _ in loader]


def training(count=23, size=4, *, split=None, device=CPU, seed=0, rank=0, world_size=1):
    sampler = sampler_for("none", np.zeros(count, np.int64), seed=seed, rank=rank, world_size=world_size)
    return training_loader(
        split or numbered(count), batch_size=size, sampler=sampler, device=device, workers=0, seed=seed
    )


def pictures(folder, count=7, size=(6, 5), **options):
    """Image files whose pixels identify their sample."""
    paths = []
    for number in range(count):
        paths.append(folder / f"{number}.png")
        Image.new("RGB", size[::-1], (number, number, number)).save(paths[-1])
    return FileImages(path_array(paths), np.arange(count) % 3, **options)


def test_training_batches_have_one_size_and_come_from_the_whole_split():
    loader = training()
    seen = samples(loader)
    assert [len(batch) for batch in seen] == [4] * 5
    assert len(loader) == 5
    assert len({sample for batch in seen for sample in batch}) == 20


def test_fewer_samples_than_a_batch_are_one_smaller_batch():
    assert sorted(samples(training(3, 8))[0]) == [0, 1, 2]
    both = [samples(training(5, 4, rank=rank, world_size=2)) for rank in range(2)]
    assert [[len(batch) for batch in own] for own in both] == [[3], [3]]


def test_epochs_differ_and_a_resumed_one_is_the_same():
    loader, orders = training(), []
    for epoch in range(3):
        loader.set_epoch(epoch)
        orders.append(samples(loader))
    assert orders[0] != orders[1] != orders[2]
    resumed = training()
    resumed.set_epoch(2)
    assert samples(resumed) == orders[2]
    assert samples(training(seed=1)) != orders[0]


def test_the_epoch_may_be_set_after_the_iterator_was_made():
    loader = training()
    loader.set_epoch(1)
    expected = samples(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    loader.set_epoch(1)
    assert samples(iterator) == expected


@pytest.mark.parametrize("world", [2, 3])
def test_the_batches_of_all_processes_are_the_joint_batch(world):
    joint = samples(training(50, 4 * world))
    shares = [samples(training(50, 4, rank=rank, world_size=world)) for rank in range(world)]
    for number, batch in enumerate(joint):
        assert sorted(sample for share in shares for sample in share[number]) == sorted(batch)
    assert {len(share) for share in shares} == {len(joint)}


@pytest.mark.parametrize(("count", "world"), [(1, 2), (4, 5)])
def test_evaluation_needs_a_sample_for_each_process(count, world):
    with pytest.raises(DataError, match=f"each of the {world} processes, found {count}"):
        evaluation_loader(numbered(count), batch_size=3, device=CPU, workers=0, rank=0, world_size=world)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_evaluation_sees_every_sample_once_in_as_many_batches_everywhere(count, size, world):
    assume(count >= world)
    loaders = [
        evaluation_loader(numbered(count), batch_size=size, device=CPU, workers=0, rank=rank, world_size=world)
        for rank in range(world)
    ]
    seen = [samples(loader) for loader in loaders]
    assert sorted(sample for own in seen for batch in own for sample in batch) == list(range(count))
    assert {len(loader) for loader in loaders} == {len(own) for own in seen} == {len(seen[0])}
    sizes = {len(batch) for own in seen for batch in own}
    assert min(sizes) >= 1
    assert max(sizes) <= size + (size == 1)
    if size > 1 or count % world == 0:
        assert len(seen[0]) == math.ceil(math.ceil(count / world) / size)  # no more than needed
    for loader, own in zip(loaders, seen, strict=True):
        assert loader.indices.tolist() == [sample for batch in own for sample in batch]


def test_evaluation_comes_in_the_same_order_again():
    loader = evaluation_loader(numbered(10), batch_size=4, device=CPU, workers=0, rank=0, world_size=1)
    assert samples(loader) == samples(loader) == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (np.array([0, 1, 2], np.int32), torch.int64),
        (np.array([[0, 1], [1, -1], [1, 1]], np.int8), torch.float32),
        (np.array([[0, 1], [1, -1], [1, 1]], np.int64), torch.float32),
        (np.array([[0.25, 1.0], [1.0, -1.0], [0.5, 0.0]]), torch.float32),
        (np.full((3, 2, 2), 255, np.uint8), torch.int64),
        (np.full((3, 2, 2), -100, np.int8), torch.int64),
        (np.full((3, 2, 2), 65535, np.uint16), torch.int64),
        (np.full((3, 2, 2), -100, ">i4"), torch.int64),
        (np.array([True, False, True]), torch.int64),
    ],
)
def test_labels_come_as_losses_take_them(labels, dtype):
    loader = evaluation_loader(numbered(3, labels), batch_size=3, device=CPU, workers=0, rank=0, world_size=1)
    ((_, targets),) = loader
    assert targets.dtype is dtype
    np.testing.assert_array_equal(targets.numpy(), labels.astype(targets.numpy().dtype))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32", ">f4"])
def test_inputs_keep_their_values(dtype):
    inputs = np.arange(24).reshape(6, 2, 2)[::-1].astype(dtype)
    inputs.flags.writeable = False
    split = Arrays(inputs, np.zeros(6, np.int64))
    ((batch, _),) = evaluation_loader(split, batch_size=6, device=CPU, workers=0, rank=0, world_size=1)
    assert batch.dtype is getattr(torch, np.dtype(dtype).name)
    np.testing.assert_array_equal(batch.numpy(), inputs)


def test_doubles_become_single_floats():
    split = Arrays(np.ones((2, 1)), np.zeros(2, np.int64))
    ((batch, _),) = evaluation_loader(split, batch_size=2, device=CPU, workers=0, rank=0, world_size=1)
    assert batch.dtype is torch.float32


def test_writing_into_a_batch_leaves_the_data_alone():
    split = numbered(4)
    for inputs, labels in evaluation_loader(split, batch_size=4, device=CPU, workers=0, rank=0, world_size=1):
        inputs.fill_(-1)
        labels.fill_(-1)
    assert split.inputs[:, 0].tolist() == [0, 1, 2, 3]
    assert split.labels.tolist() == [0, 0, 0, 0]


def test_loaders_of_a_split_share_its_tensors_which_die_with_it():
    split = numbered(8, np.zeros(8, np.int32))  # labels have to be converted
    first, second = training(8, split=split), training(8, split=split)
    assert first.data[1] is second.data[1]
    kept = weakref.ref(first.data[1])
    del first, second, split
    gc.collect()
    assert kept() is None


def test_fits():
    assert fits(0, 0)
    assert fits(300, 1000)
    assert not fits(301, 1000)


def test_large_split_is_gathered_on_the_host(monkeypatch):
    expected = samples(training())
    monkeypatch.setattr(loaders, "_free_memory", lambda device: 0)
    loader = training()
    assert type(loader) is loaders.HostLoader
    assert samples(loader) == expected
    labels = np.full((23, 2, 2), 255, np.uint8)
    ((_, targets),) = training(3, 8, split=numbered(3, labels[:3]))
    assert targets.dtype is torch.int64
    assert (targets == 255).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_files_give_the_batches_of_arrays(tmp_path, workers):
    split = pictures(tmp_path)
    expected = list(evaluation_loader(split.as_arrays(), batch_size=3, device=CPU, workers=0, rank=0, world_size=1))
    loader = evaluation_loader(split, batch_size=3, device=CPU, workers=workers, rank=0, world_size=1)
    for _ in range(2):  # workers are kept
        batches = list(loader)
        assert len(batches) == len(loader) == len(expected)
        for pair, wanted in zip(batches, expected, strict=True):
            for tensor, other in zip(pair, wanted, strict=True):
                assert_close(tensor, other, rtol=0, atol=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_training_on_files_follows_the_sampler(tmp_path, workers):
    sampler = sampler_for("balanced", (split := pictures(tmp_path)).labels, seed=3)
    loader = training_loader(split, batch_size=2, sampler=sampler, device=CPU, workers=workers, seed=3)
    state = torch.get_rng_state()
    for epoch in (1, 0):
        loader.set_epoch(epoch)
        drawn = [image[0, 0, 0].item() for inputs, _ in loader for image in inputs]
        assert drawn == list(sampler)[:6]
        assert len(drawn) == 2 * len(loader)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_may_be_left_early(tmp_path, workers):
    loader = evaluation_loader(pictures(tmp_path), batch_size=1, device=CPU, workers=workers, rank=0, world_size=1)
    next(iter(loader))
    assert [inputs[0, 0, 0, 0].item() for inputs, _ in loader] == list(range(7))


def test_files_are_decoded_in_other_processes(tmp_path, monkeypatch):
    split = pictures(tmp_path, 2)
    monkeypatch.setattr(FileImages, "as_arrays", lambda self, **_: numbered(1, np.array([os.getpid()])))
    seen = {}
    for workers in (0, 2):
        loader = evaluation_loader(split, batch_size=1, device=CPU, workers=workers, rank=0, world_size=1)
        seen[workers] = {int(labels[0]) for _, labels in loader}
    assert seen[0] == {os.getpid()}
    assert len(seen[2]) == 2
    assert os.getpid() not in seen[2]


def test_masks_come_with_their_images(tmp_path):
    split = pictures(tmp_path, 3)
    for number in range(3):
        Image.new("L", (5, 6), 255 if number == 2 else number).save(tmp_path / f"mask{number}.png")
    paths = path_array(tmp_path / f"mask{number}.png" for number in range(3))
    masks = Masks(paths, np.array([[30, 0], [0, 30], [0, 0]]), 255)
    split = FileImages(split.paths, (masks.pixels > 0).astype(np.int8), masks=masks)
    ((_, maps),) = evaluation_loader(split, batch_size=3, device=CPU, workers=1, rank=0, world_size=1)
    assert maps.dtype is torch.int64
    assert maps.shape == (3, 6, 5)
    assert maps[:, 0, 0].tolist() == [0, 1, 255]


@pytest.mark.parametrize("workers", [0, 2])
def test_corrupt_file_is_named_by_workers(tmp_path, workers):
    split = pictures(tmp_path)
    (tmp_path / "5.png").write_bytes(b"no picture")
    with pytest.raises(DataError) as alone:
        split.load(5)
    loader = evaluation_loader(split, batch_size=2, device=CPU, workers=workers, rank=0, world_size=1)
    with pytest.raises(DataError) as caught:
        list(loader)
    assert type(caught.value) is type(alone.value)
    assert str(caught.value) == str(alone.value)
    assert str(tmp_path / "5.png") in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_files_of_several_sizes_need_one(tmp_path, workers):
    split = pictures(tmp_path, 4)
    Image.new("RGB", (9, 9)).save(tmp_path / "3.png")
    loader = evaluation_loader(split, batch_size=4, device=CPU, workers=workers, rank=0, world_size=1)
    with pytest.raises(DataError, match=r"3\.png: images must have one size.*found 9 x 9 .*choose image_size"):
        list(loader)
    sized = FileImages(split.paths, split.labels, (4, 4))
    ((inputs, _),) = evaluation_loader(sized, batch_size=4, device=CPU, workers=workers, rank=0, world_size=1)
    assert inputs.shape == (4, 3, 4, 4)


def test_other_errors_of_a_worker_keep_their_traceback(tmp_path, monkeypatch):
    def broken(self, **_):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(FileImages, "as_arrays", broken)
    loader = evaluation_loader(pictures(tmp_path), batch_size=2, device=CPU, workers=1, rank=0, world_size=1)
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*a mistake of ours"):
        list(loader)


def test_decoders_can_be_pickled_for_spawned_processes(tmp_path):
    decoder = pickle.loads(pickle.dumps(loaders.Decoder(pictures(tmp_path), threads=1)))
    inputs, labels = decoder[np.array([4, 1])]
    assert inputs[:, 0, 0, 0].tolist() == [4, 1]
    assert labels.tolist() == [1, 1]


def test_sampling_labels_of_maps_are_the_classes_that_occur():
    maps = np.array([[[0, 0], [2, 255]], [[255, 255], [255, 255]], [[1, 1], [1, 1]]], np.uint8)
    labels = labels_for_sampling(numbered(3, maps), Task.SEGMENTATION, ignore_index=255)
    assert labels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    data = digit_maps()
    assert labels_for_sampling(data.train, data.task).shape == (1500, 11)


def test_sampling_labels_of_others_are_their_own():
    single, several = np.array([0, 2, 1]), np.array([[0, 1], [1, -1], [1, 1]], np.int8)
    assert labels_for_sampling(numbered(3, single), Task.MULTICLASS) is single
    assert labels_for_sampling(numbered(3, several), Task.MULTILABEL) is several
    assert labels_for_sampling(Texts(("a", "b", "c"), single), Task.MULTICLASS) is single
    ignored = labels_for_sampling(numbered(3, np.array([0, -100, 1])), Task.MULTICLASS)
    assert ignored.tolist() == [[1, 0], [0, 0], [0, 1]]
    assert 1 not in list(sampler_for("balanced", ignored))


def test_mistakes():
    with pytest.raises(ValueError, match="batch_size must be"):
        training(size=0)
    with pytest.raises(ValueError, match="batch_size must be"):
        evaluation_loader(numbered(3), batch_size=0, device=CPU, workers=0, rank=0, world_size=1)
    with pytest.raises(TypeError, match="arrays or image files, got Texts; encode"):
        evaluation_loader(Texts(("a",), np.zeros(1)), batch_size=1, device=CPU, workers=0, rank=0, world_size=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnGPU:
    @pytest.mark.parametrize("fitting", [True, False])
    def test_batches_equal_those_of_the_cpu_without_sync(self, monkeypatch, fitting):
        expected = samples(training(1000, 32))
        if not fitting:
            monkeypatch.setattr(loaders, "_free_memory", lambda device: 0)
        loader = training(1000, 32, device="cuda")
        assert type(loader) is (loaders.DeviceLoader if fitting else loaders.HostLoader)
        samples(loader)  # memory of the host is pinned now
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            seen = [(inputs[:, 0] * 1.0, labels) for inputs, labels in loader]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert [batch.int().tolist() for batch, _ in seen] == expected
        assert {labels.device.type for _, labels in seen} == {"cuda"}

    @pytest.mark.parametrize("workers", [0, 2])
    def test_files_are_sent(self, tmp_path, workers):
        split = pictures(tmp_path)
        loader = evaluation_loader(split, batch_size=2, device="cuda", workers=workers, rank=0, world_size=1)
        for _ in range(2):
            seen = list(loader)
            assert {inputs.device.type for inputs, _ in seen} == {"cuda"}
            assert [image[0, 0, 0].item() for inputs, _ in seen for image in inputs] == list(range(7))

    def test_a_corrupt_file_is_named(self, tmp_path):
        split = pictures(tmp_path)
        (tmp_path / "5.png").write_bytes(b"no picture")
        loader = evaluation_loader(split, batch_size=2, device="cuda", workers=2, rank=0, world_size=1)
        with pytest.raises(DataError, match=r"5\.png: the file must be an image"):
            list(loader)

    def test_loaders_share_what_lies_on_the_device(self):
        split = numbered(8)
        both = [training(8, split=split, device=device) for device in ("cuda", f"cuda:{torch.cuda.current_device()}")]
        assert both[0].data[0] is both[1].data[0]


WAITING = """
import sys
import numpy as np
from equipoise.data.files import FileImages
from equipoise.train.loaders import evaluation_loader

if __name__ == "__main__":
    images = FileImages(np.array([sys.argv[1]] * 2), np.zeros(2, np.int64), size=(2, 2))
    list(evaluation_loader(images, batch_size=1, device="cpu", workers=2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux sees to it")
def test_workers_end_with_their_parent(tmp_path):
    """Also while they are blocked, here on the first byte of an image."""
    picture = tmp_path / "picture.png"
    os.mkfifo(picture)

    def workers():
        processes = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                here = str(picture).encode() in (folder / "cmdline").read_bytes()
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if here and state not in "ZX" and int(folder.name) != asking.pid:
                processes.append(int(folder.name))
        return processes

    def until(condition, seconds):
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            time.sleep(0.05)
        return condition()

    asking = subprocess.Popen([sys.executable, "-c", WAITING, str(picture)])
    try:
        assert until(lambda: len(workers()) == 2, 120)
        time.sleep(1)  # until they ask for the picture
    finally:
        asking.kill()
        asking.wait()
    try:
        assert until(lambda: not workers(), 30)
    finally:
        if workers():
            with picture.open("wb"):  # let those go that are left
                pass
