"""Splits: disjoint, complete, stratified, and reproducible by seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data import stratified_split
from equipoise.data.splits import scarce_classes

SHARES = st.lists(st.floats(0.05, 0.45), min_size=1, max_size=2).map(lambda held: [1 - sum(held), *held])


def partition(parts, samples):
    return sorted(np.concatenate(parts).tolist()) == list(range(samples))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), SHARES, st.integers(0, 5))
def test_one_label_within_one_sample_of_the_share(counts, shares, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    parts = stratified_split(labels, shares, seed=seed)
    assert partition(parts, len(labels))
    for c, count in enumerate(counts):
        in_parts = np.array([(labels[part] == c).sum() for part in parts])
        if count < len(shares):
            assert in_parts.tolist() == [count] + [0] * (len(shares) - 1)
        else:
            assert (np.abs(in_parts - np.array(shares) * count) < 1).all()
            assert in_parts[0] >= 1


def test_the_shares_of_all_classes_add_up():
    """Rounding must not be biased: 100 classes of 11 samples have 1.65 each for a fraction of 0.15."""
    labels = np.repeat(np.arange(100), 11)
    assert [len(part) for part in stratified_split(labels, [0.7, 0.15, 0.15])] == pytest.approx([770, 165, 165], abs=1)


def test_a_class_of_four_is_in_all_three_splits():
    parts = stratified_split(np.repeat([0, 1], [4, 96]), [0.7, 0.15, 0.15])
    assert [int((part < 4).sum()) for part in parts] == [2, 1, 1]


def test_training_has_every_class_however_small_its_share():
    labels = np.repeat(np.arange(20), 3)
    parts = stratified_split(labels, [0.1, 0.45, 0.45])
    assert np.bincount(labels[parts[0]]).tolist() == [1] * 20


def test_a_scarce_label_stays_in_training_however_small_its_share():
    present = np.zeros((40, 2), int)
    present[:, 0], present[:2, 1] = 1, 1
    parts = stratified_split(present, [0.1, 0.45, 0.45])
    assert {0, 1} <= set(parts[0].tolist())
    assert [len(part) for part in parts] == [4, 18, 18]


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 8), SHARES, st.integers(0, 5))
def test_several_labels(samples, labels, shares, seed):
    draw = np.random.default_rng(seed)
    present = draw.random((samples, labels)) < np.geomspace(0.5, 0.02, labels)
    parts = stratified_split(present.astype(int), shares, seed=seed)
    assert partition(parts, samples)
    for c in scarce_classes(present, len(shares)):
        assert not present[np.concatenate(parts[1:])][:, c].any()


def test_several_labels_keep_their_shares():
    """Far closer than chance: a random split of these labels is off by some twenty samples."""
    draw = np.random.default_rng(0)
    present = draw.random((6000, 30)) < np.geomspace(0.4, 0.002, 30)
    shares = np.array([0.7, 0.15, 0.15])
    parts = stratified_split(present, shares.tolist(), seed=1)
    assert [len(part) for part in parts] == pytest.approx([4200, 900, 900], abs=1)
    in_parts = np.stack([present[part].sum(0) for part in parts])
    assert np.abs(in_parts - shares[:, None] * present.sum(0)).max() < 2


def test_rarest_label_is_assigned_first_to_the_largest_demand():
    """By hand: label 1 is on samples 0 to 3, wished 2 : 1 : 1; the sixteen others have label 0 alone."""
    present = np.zeros((20, 2), int)
    present[:, 0], present[:4, 1] = 1, 1
    parts = stratified_split(present, [0.5, 0.25, 0.25])
    assert [int((part < 4).sum()) for part in parts] == [2, 1, 1]
    assert [len(part) for part in parts] == [10, 5, 5]


@pytest.mark.parametrize("labels", [np.repeat([0, 1, 2], 30), np.tile(np.eye(3, dtype=int), (30, 1))])
def test_seeds(labels):
    first, again, other = (stratified_split(labels, [0.5, 0.5], seed=seed)[1].tolist() for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(
    ("labels", "shares", "words"),
    [
        (np.zeros((4, 2, 2)), [0.5, 0.5], "label maps"),
        ([0, 1], [0.5, 0.2], "sum to 1"),
        ([0, 1], [0.0, 1.0], "samples for training"),
        ([0, 1], [1.5, -0.5], "numbers >= 0"),
        ([0, 1], [], "one per split"),
    ],
)
def test_bad_arguments(labels, shares, words):
    with pytest.raises(ValueError, match=words):
        stratified_split(labels, shares)


def test_no_samples_and_unknown_labels():
    assert [len(part) for part in stratified_split(np.empty(0, int), [0.5, 0.5])] == [0, 0]
    unknown = np.full((10, 2), -1)
    assert sorted(len(part) for part in stratified_split(unknown, [0.5, 0.5])) == [5, 5]
