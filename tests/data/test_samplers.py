"""Samplers: frequencies, order, epochs, and parts of processes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data import SAMPLERS, ClassSampler, DeferredSampler, RepeatFactorSampler, sampler_for
from equipoise.schedules import Moment
from equipoise.weights import Deferred
from tests.models.cases import says

LABELS = np.repeat([0, 1, 2], [600, 60, 6])


def shares(sampler, labels=LABELS):
    drawn = np.bincount(labels[list(sampler)], minlength=3)
    return drawn / drawn.sum()


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("none", [600, 60, 6]),
        ("balanced", [1, 1, 1]),
        ("square-root", np.sqrt([600, 60, 6])),
        ("reversed", 1 / np.array([600, 60, 6])),
    ],
)
def test_frequencies_are_exact_to_a_sample(name, weights):
    expected = np.asarray(weights, float) / np.sum(weights)
    assert shares(sampler_for(name, LABELS)) == pytest.approx(expected, abs=1.01 / len(LABELS))


def test_mean_frequencies_are_exact_for_fractional_counts():
    sampler = ClassSampler([0, 0, 0, 1, 1, 2], power=0.5, length=4)
    total = np.zeros(3)
    for epoch in range(3000):
        sampler.set_epoch(epoch)
        total += np.bincount(np.array([0, 0, 0, 1, 1, 2])[list(sampler)], minlength=3)
    expected = np.sqrt([3, 2, 1]) / np.sqrt([3, 2, 1]).sum()
    assert total / total.sum() == pytest.approx(expected, abs=0.01)


def test_progressive_moves_from_the_data_to_balance():
    sampler = sampler_for("progressive", LABELS, epochs=5)
    first = shares(sampler)
    sampler.set_epoch(4)
    last = shares(sampler)
    assert first == pytest.approx(np.array([600, 60, 6]) / 666, abs=0.005)
    assert last == pytest.approx(np.full(3, 1 / 3), abs=0.005)
    sampler.set_epoch(2)
    assert shares(sampler) == pytest.approx((first + last) / 2, abs=0.005)


def test_none_is_a_shuffle_and_turns_are_fair():
    assert sorted(sampler_for("none", LABELS)) == list(range(len(LABELS)))
    several = [[0, 0], [1, 0], [1, 1], [1, 1]]
    assert sorted(sampler_for("none", several)) == [0, 1, 2, 3]
    times = Counter(sampler_for("balanced", LABELS))
    assert max(times[i] for i in range(600)) == 1  # 222 of 600: none twice
    rare = [times[i] for i in range(660, 666)]
    assert max(rare) - min(rare) <= 1


def test_repeat_factors_by_hand():
    sampler = RepeatFactorSampler(LABELS, threshold=0.36)
    rare, medium = np.sqrt(0.36 * 666 / 6), np.sqrt(0.36 * 666 / 60)
    assert sampler.factors[[0, 600, 660]] == pytest.approx([1.0, medium, rare])
    counts = np.zeros(len(LABELS))
    for epoch in range(200):
        sampler.set_epoch(epoch)
        drawn = np.bincount(list(sampler), minlength=len(LABELS))
        assert drawn[:600].min() >= 0
        counts += drawn
    means = counts / 200
    assert means[660:].mean() == pytest.approx(rare, rel=0.02)
    assert means[600:660].mean() == pytest.approx(medium, rel=0.02)
    assert means[:600].mean() == pytest.approx(1.0, rel=0.02)


def test_several_labels():
    labels = np.zeros((100, 3), int)
    labels[:, 0] = 1
    labels[:10, 1] = 1
    labels[:2, 2] = 1
    drawn = Counter(ClassSampler(labels, power=0.0))
    assert sum(drawn[i] for i in range(2)) >= 33
    assert RepeatFactorSampler(labels, threshold=0.5).factors[[0, 5, 50]] == pytest.approx([5.0, np.sqrt(5.0), 1.0])


@pytest.mark.parametrize("name", SAMPLERS)
def test_epochs_differ_and_repeat_exactly(name):
    sampler = sampler_for(name, LABELS, epochs=10, seed=3)
    first = list(sampler)
    assert first == list(sampler_for(name, LABELS, epochs=10, seed=3))
    sampler.set_epoch(1)
    assert first != list(sampler)
    assert first != list(sampler_for(name, LABELS, epochs=10, seed=4))


def deferred(name, *, epochs=10, start=0.8, **process):
    """The distribution of the data first, then the sampler of that name."""
    after = sampler_for(name, LABELS, epochs=epochs, **process)
    return DeferredSampler(sampler_for("none", LABELS, **process), after, epochs=epochs, start=start)


@pytest.mark.parametrize("name", SAMPLERS)
def test_deferred_is_one_sampler_and_then_the_other(name):
    sampler = deferred(name, seed=3)
    before, after = sampler_for("none", LABELS, seed=3), sampler_for(name, LABELS, epochs=10, seed=3)
    for epoch in range(10):
        for each in (sampler, before, after):
            each.set_epoch(epoch)
        assert list(sampler) == list(before if epoch < 8 else after)[: len(LABELS)]
        assert len(sampler) == len(LABELS)


def test_deferred_samples_start_with_deferred_weights():
    """Also if the product of epochs and start is not an integer, or is one up to rounding."""
    for epochs in (1, 3, 7, 10, 200):
        for start in (0.0, 0.3, 0.7, 0.8, 1.0, 160 / 200):
            weights, sampler = Deferred([2.0], start=start), deferred("balanced", epochs=epochs, start=start)
            for epoch in range(epochs):
                sampler.set_epoch(epoch)
                weighted = weights.values(Moment(epoch / epochs, epoch, epochs))["weight"] == (2.0,)
                balanced = shares(sampler) == pytest.approx(np.full(3, 1 / 3), abs=0.005)
                assert balanced == weighted, (epochs, start, epoch)


def test_deferred_epochs_are_equally_long():
    """Longer or shorter epochs of a sampler are cut or continued, with the same frequencies."""
    for length in (100, 5000):
        after = ClassSampler(LABELS, power=0.0, length=length)
        sampler = DeferredSampler(sampler_for("none", LABELS), after, epochs=1, start=0.0)
        drawn = list(sampler)
        assert len(drawn) == len(sampler) == sampler.length == len(LABELS)
        assert shares(drawn) == pytest.approx(np.full(3, 1 / 3), abs=0.06)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SAMPLERS), st.integers(1, 5), st.integers(0, 5), st.booleans())
def test_shares_of_processes_make_up_the_epoch_of_one(name, world_size, epoch, late):
    def drawn(rank, size):
        process = {"rank": rank, "world_size": size}
        sampler = deferred(name, epochs=6, **process) if late else sampler_for(name, LABELS, epochs=6, **process)
        sampler.set_epoch(epoch)
        indices = list(sampler)
        assert len(indices) == len(sampler)
        return indices

    together = [
        index for group in zip(*(drawn(rank, world_size) for rank in range(world_size)), strict=True) for index in group
    ]
    alone = drawn(0, 1)
    assert together[: len(alone)] == alone
    assert len(together) - len(alone) < world_size


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sampler_for("magic", LABELS), "sampler must be one of none, balanced"),
        (lambda: sampler_for("progressive", LABELS), "epochs"),
        (lambda: ClassSampler([]), "at least one sample"),
        (lambda: ClassSampler([0.5, 1.0]), "integers"),
        (lambda: ClassSampler([0, -1]), "not be negative"),
        (lambda: ClassSampler([0, 1], rank=2, world_size=2), "rank"),
        (lambda: RepeatFactorSampler([0, 1], threshold=0.0), "threshold"),
        (lambda: deferred("balanced", start=1.5), "start"),
        (lambda: deferred("balanced", epochs=0), "epochs"),
        (
            lambda: DeferredSampler(ClassSampler([0], rank=0, world_size=2), ClassSampler([0]), epochs=5),
            "same process, got rank 0 of 2 and 0 of 1; give both",
        ),
        (
            lambda: DeferredSampler(sampler_for("none", [0, 1]), RepeatFactorSampler([0, 1, 1]), epochs=5),
            "before and after must draw from the same samples, got 2 and 3 samples; create both",
        ),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(("name", "wrong"), [("before", "none"), ("after", range(10)), ("after", None)])
def test_deferred_needs_two_samplers(name, wrong):
    both = {"before": sampler_for("none", LABELS), "after": sampler_for("balanced", LABELS), name: wrong}
    came = rf"{name} must be a sampler of equipoise.data, got {type(wrong).__name__}; pass e.g. sampler_for"
    with pytest.raises(TypeError, match=came):
        DeferredSampler(**both, epochs=5)


@pytest.mark.parametrize("epochs", [10.0, "10", True])
def test_epochs_must_be_integers(epochs):
    message = says("epochs", "an integer of at least 1", f"got {epochs!r}")
    with pytest.raises(TypeError, match=message):
        sampler_for("progressive", LABELS, epochs=epochs)
    with pytest.raises(TypeError, match=message):
        DeferredSampler(sampler_for("none", LABELS), sampler_for("balanced", LABELS), epochs=epochs)
