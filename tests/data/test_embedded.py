"""The embedded data sets: content, reproducibility, and disjoint splits."""

import hashlib

import numpy as np
import pytest

from equipoise.data import EMBEDDED, Arrays, digit_maps, digit_scenes, digits_lt


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_same_every_time_and_another_for_another_seed(name):
    def print_of(seed):
        data = EMBEDDED[name](seed=seed)
        return hashlib.sha256(data.train.inputs.tobytes() + data.test.labels.tobytes()).hexdigest()

    assert print_of(0) == print_of(0) != print_of(1)


@pytest.mark.parametrize("name", EMBEDDED)
def test_shapes_types_and_names(name):
    data = EMBEDDED[name]()
    assert data.name == name
    for split in (data.train, data.val, data.test):
        assert split.inputs.dtype == np.uint8
        assert split.inputs.max() == 255
        assert len(split) == len(split.labels)
        assert split.labels.min() >= 0
        assert split.labels.max() == (1 if data.task == "multilabel" else len(data.class_names) - 1)
    assert (data.train_counts > 0).all()


def test_digits_are_long_tailed_in_training_only():
    data = digits_lt(ratio=50.0)
    assert data.train_counts[0] == 100
    assert data.train_counts[-1] == 2
    assert np.bincount(data.val.labels).tolist() == [20] * 10
    assert np.bincount(data.test.labels).tolist() == [40] * 10


def test_no_digit_is_in_two_splits():
    data = digits_lt(ratio=1.0)
    seen = [{image.tobytes() for image in split.inputs} for split in (data.train, data.val, data.test)]
    assert not (seen[0] & seen[1])
    assert not (seen[0] & seen[2])
    assert not (seen[1] & seen[2])


def test_scenes_hold_what_the_labels_and_maps_say():
    scenes, maps = digit_scenes(), digit_maps()
    assert np.array_equal(scenes.test.inputs, maps.test.inputs)
    for image, present, labels in zip(scenes.test.inputs, scenes.test.labels, maps.test.labels, strict=True):
        assert set(np.unique(labels)) - {0} == set(np.flatnonzero(present) + 1)
        assert (image[0][labels > 0] >= 64).all()
    assert scenes.train.labels.sum(1).min() >= 1


def test_frequencies_fall_and_background_outweighs_the_rarest_digit():
    share = digit_scenes().train_counts / 1500
    assert share[0] == pytest.approx(0.5, abs=0.06)
    assert share[9] < 0.02
    counts = digit_maps().train_counts
    assert counts[0] >= 300 * counts[1:].min()
    assert counts.sum() == 1500 * 32 * 32


def test_splits_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="got 2 and 3"):
        Arrays(np.zeros((2, 1)), np.zeros(3))
