"""Counts of long tails, and the selected samples."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.data import exponential_counts, first_4000, first_4000_counts, pareto_counts, step_counts, subsample


def test_cifar_counts_of_the_literature():
    assert exponential_counts(10, 5000, 100) == (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)
    assert sum(exponential_counts(100, 500, 100)) == 10847  # CIFAR-100-LT of Cao et al. 2019
    assert step_counts(10, 5000, 100) == (5000,) * 5 + (50,) * 5


def test_counts_of_the_4000_images():
    """Of 10 classes those of the published index lists, of 100 classes those of the paper, less what is over 4,000."""
    assert first_4000_counts(10, "5/3") == (490, 470, 450, 430, 410, 390, 370, 350, 330, 310)
    assert first_4000_counts(10, "6/2") == (580, 540, 500, 460, 420, 380, 340, 300, 260, 220)
    mild, steep = first_4000_counts(100, "5/3"), first_4000_counts(100, "6/2")
    assert mild[:9] == (50, 50, 50, 49, 49, 49, 49, 49, 48)
    assert mild[86:] == (33, 33, 32, 32, 31, 31, 31, 30, 30, 30, 30, 30, 29, 29)
    assert steep[:9] == (60, 60, 59, 59, 58, 58, 58, 57, 57)
    assert steep[78:84] == (29, 28, 27, 27, 26, 26)
    assert steep[-3:] == (20, 20, 19)
    for counts in (mild, steep, first_4000_counts(10, "5/3"), first_4000_counts(10, "6/2")):
        assert sum(counts) == 4000
        assert all(a >= b for a, b in itertools.pairwise(counts))


def test_the_4000_images_are_the_first():
    labels = np.random.default_rng(0).integers(0, 10, 7000)
    assert np.array_equal(first_4000(labels, 10, "balanced"), np.arange(4000))
    for variant in ("5/3", "6/2"):
        left, expected = list(first_4000_counts(10, variant)), []
        for i, label in enumerate(labels):
            if left[label]:
                left[label] -= 1
                expected.append(i)
        assert first_4000(labels, 10, variant).tolist() == expected


@given(
    st.sampled_from([exponential_counts, step_counts, pareto_counts]),
    st.integers(2, 200),
    st.integers(100, 5000),
    st.floats(1.0, 100.0),
)
def test_counts_decrease_from_largest_to_smallest(rule, classes, largest, ratio):
    counts = rule(classes, largest, ratio)
    assert len(counts) == classes
    assert counts[0] == largest
    assert counts[-1] == max(1, int(largest / ratio + 1e-9))
    assert all(a >= b >= 1 for a, b in itertools.pairwise(counts))


def test_pareto_falls_faster_than_exponential_and_meets_it():
    steep, even = pareto_counts(50, 5000, 100), exponential_counts(50, 5000, 100)
    assert all(a <= b for a, b in zip(steep, even, strict=True))
    assert sum(steep) < sum(even)
    assert pareto_counts(50, 5000, 100, power=1e6) == pytest.approx(even, abs=1)


def test_subsample_keeps_the_counts_and_follows_the_seed():
    labels = np.random.default_rng(0).integers(0, 3, 600)
    kept = subsample(labels, [100, 20, 3], seed=1)
    assert np.bincount(labels[kept]).tolist() == [100, 20, 3]
    assert len(set(kept.tolist())) == len(kept)
    assert np.array_equal(kept, subsample(labels, [100, 20, 3], seed=1))
    assert not np.array_equal(kept, subsample(labels, [100, 20, 3], seed=2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: subsample([0, 0, 1], [2, 2]), "got 2 of class 1, which has 1"),
        (lambda: subsample([[0], [1]], [1, 1]), "shape"),
        (lambda: first_4000(np.zeros(3999, int), 10, "balanced"), "at least 4000 samples, got 3999"),
        (lambda: first_4000(np.arange(4000) % 10, 10, "5/3"), "got 490 of class 0, which has 400"),
        (lambda: first_4000(np.arange(4000) % 10, 10, "4/4"), "'6/2', got '4/4'"),
        (lambda: first_4000_counts(10, "balanced"), "variant must be one of '5/3', '6/2'"),
        (lambda: first_4000_counts(20, "6/2"), "num_classes must be 10 or 100 .* got 20"),
        (lambda: exponential_counts(10, 100, 0.5), "ratio"),
        (lambda: exponential_counts(0, 100, 5), "num_classes"),
        (lambda: pareto_counts(10, 100, 5, power=0.0), "power"),
        (lambda: step_counts(10, 100, 5, share=2.0), "share"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()
