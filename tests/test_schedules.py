"""Schedules: pure functions of progress, checked against their formulas and at their ends."""

import math
import pickle
from fractions import Fraction

import pytest

from equipoise.schedules import (
    Constant,
    Cosine,
    Cyclical,
    Join,
    Linear,
    Moment,
    Parabolic,
    Schedule,
    Steps,
    join,
)

GRID = [k / 40 for k in range(41)]


def exact(value):
    return pytest.approx(value, rel=1e-15, abs=1e-15)  # a few float64 operations


FORMULAS = {
    "constant": (Constant(2.5), lambda u: 2.5),
    "linear": (Linear(1.0, 3.0), lambda u: 1 + 2 * u),
    "linear down": (Linear(3.0, -1.0), lambda u: 3 - 4 * u),
    "cosine": (Cosine(1.0, 3.0), lambda u: 2 - math.cos(math.pi * u)),
    "cosine down": (Cosine(3.0, 0.0), lambda u: 3 * math.cos(math.pi * u / 2) ** 2),
    "parabolic": (Parabolic(), lambda u: 1 - u * u),
    "parabolic up": (Parabolic(0.5, 2.0), lambda u: 0.5 + 1.5 * u * u),
}


@pytest.mark.parametrize(("schedule", "formula"), FORMULAS.values(), ids=FORMULAS)
def test_smooth_schedules(schedule, formula):
    for progress in GRID:
        assert schedule(progress) == pytest.approx(formula(progress), rel=1e-14, abs=1e-14)
    if not isinstance(schedule, Constant):
        assert (schedule(0.0), schedule(1.0)) == (schedule.start, exact(schedule.stop))


def test_cosine_is_flat_at_both_ends_and_parabolic_at_the_start():
    step = 1e-4
    for progress in (0.0, 1.0 - step):
        assert abs(Cosine(0.0, 1.0)(progress + step) - Cosine(0.0, 1.0)(progress)) < 3 * step**2
    assert abs(Parabolic()(step) - 1) < 2 * step**2
    assert Parabolic()(1.0) == 0.0  # BBN's mixing reaches 0


def test_steps_change_at_their_cuts():
    schedule = Steps((5.0, 3.0, 1.0), at=(0.25, 0.75))
    below, above = math.nextafter(0.25, 0), math.nextafter(0.75, 0)
    assert [schedule(u) for u in (0, below, 0.25, above, 0.75, 1)] == [5, 5, 3, 3, 1, 1]
    assert Steps((2.0,), at=())(0.3) == 2.0
    assert [Steps((2.0, 4.0), at=(0.0,))(u) for u in (0.0, 1.0)] == [4.0, 4.0]
    assert [Steps((2.0, 4.0), at=(1.0,))(u) for u in (0.0, math.nextafter(1, 0), 1.0)] == [2.0, 2.0, 4.0]
    assert Steps([5, 3], at=[0.5]) == Steps((5.0, 3.0), at=(0.5,))  # lists will do


def test_steps_at_epochs_of_a_training():
    for epochs in (7, 30, 90, 350):
        for cut in range(1, epochs):
            schedule = Steps((1.0, 2.0), at=(cut / epochs,))
            assert [Moment(0.0, epoch, epochs).value(schedule) for epoch in range(epochs)] == [
                1.0 if epoch < cut else 2.0 for epoch in range(epochs)
            ]


def test_join_runs_every_piece_from_its_start_to_its_end():
    schedule = join([Linear(0.0, 2.0), Constant(2.0), Cosine(2.0, 0.0)], at=[0.25, 0.5])
    assert schedule == Join((Linear(0.0, 2.0), Constant(2.0), Cosine(2.0, 0.0)), (0.25, 0.5))
    for progress, value in ((0.0, 0.0), (0.125, 1.0), (0.25, 2.0), (0.4, 2.0), (0.5, 2.0), (0.75, 1.0), (1.0, 0.0)):
        assert schedule(progress) == pytest.approx(value, abs=1e-15)
    assert join([Linear(0.0, 1.0)], at=[])(0.3) == 0.3
    assert join([Linear(0.0, 1.0), Linear(5.0, 7.0)], at=[1.0])(1.0) == 7.0
    assert join([Linear(0.0, 1.0), Linear(5.0, 7.0)], at=[0.0])(0.0) == 5.0
    nested = join([Constant(1.0), join([Linear(0.0, 1.0), Constant(9.0)], at=[0.5])], at=[0.5])
    assert [nested(u) for u in (0.2, 0.5, 0.625, 0.75, 1.0)] == [1.0, 0.0, 0.5, 9.0, 9.0]


def xi(epoch, epochs, factor, end):
    """Equation 8 in exact arithmetic."""
    duration = epochs - 1 if end == "last_epoch" else epochs
    if duration == 0:
        return 1.0
    x = Fraction(factor) * epoch / duration
    value = 1 - x if x <= 1 else (x - 1) / (Fraction(factor) - 1)
    return float(min(max(value, 0), 1))


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0, 2.7, 4.0, 10.0])
@pytest.mark.parametrize("epochs", [1, 2, 3, 5, 10, 200])
@pytest.mark.parametrize("end", ["last_epoch", "epochs"])
def test_cyclical_is_equation_8(factor, epochs, end):
    schedule = Cyclical(factor, end)
    values = [Moment(0.0, float(epoch), epochs).value(schedule) for epoch in range(epochs)]
    # at the low point 1 - x loses what x carries, 1e-16 times x of order 1
    assert values == pytest.approx([xi(epoch, epochs, factor, end) for epoch in range(epochs)], rel=1e-13, abs=1e-15)
    assert all(0 <= value <= 1 for value in values)
    assert values[0] == 1.0
    if end == "last_epoch" and epochs > 1:
        assert values[-1] == (pytest.approx(1.0, abs=1e-15) if factor > 1 else 0.0)
    if end == "epochs" and epochs > 1:
        assert values[-1] < 1.0


def test_cyclical_of_one_epoch_and_factor_one():
    assert Moment(0.0, 0.0, 1).value(Cyclical()) == 1.0
    assert Moment(0.0, 0.0, 1).value(Cyclical(1.0)) == 1.0
    assert [Cyclical(1.0)(u) for u in (0.0, 0.25, 1.0)] == [1.0, 0.75, 0.0]


def test_nothing_moves_past_the_end():
    assert [Cyclical(factor)(1.25) for factor in (1.0, 4.0)] == [0.0, 1.0]
    assert Moment(0.0, 9.0, 4).value(Linear(1.0, 3.0)) == 3.0
    assert Moment(0.0, 9.0, 4).value(join([Linear(0.0, 1.0), Linear(5.0, 7.0)], at=[0.5])) == 7.0


def test_cyclical_by_progress_is_the_same_for_both_ends():
    for progress in GRID:
        assert Cyclical(4.0)(progress) == Cyclical(4.0, "epochs")(progress)
    assert Cyclical()(0.25) == 0.0
    assert Cyclical()(1.0) == 1.0
    assert Cyclical() == Cyclical(4.0, "last_epoch")


def test_a_moment_resolves_numbers_and_schedules():
    assert Moment().value(3.0) == 3.0
    assert Moment().value(Linear(1.0, 3.0)) == 1.0
    assert Moment(0.25).value(Linear(0.0, 4.0)) == 1.0
    assert Moment(0.9, 1.0, 4).value(Linear(0.0, 4.0)) == 1.0  # a known epoch goes before progress
    assert Moment(0.9, 1.0, 5).value(Cyclical()) == 0.0
    assert Moment(0.25, None, 5).value(Linear(0.0, 4.0)) == 1.0
    assert Moment(0.0, 3.5, 7).value(Linear(0.0, 4.0)) == 2.0  # epochs may be fractions


@pytest.mark.parametrize(
    "schedule", [case[0] for case in FORMULAS.values()] + [Cyclical(), Steps((1, 2), at=(0.5,))], ids=repr
)
def test_schedules_are_values(schedule):
    copy = pickle.loads(pickle.dumps(schedule))
    assert copy == schedule
    assert hash(copy) == hash(schedule)
    assert isinstance(schedule, Schedule)
    assert eval(repr(schedule)) == schedule
    for progress in GRID:
        assert isinstance(float(schedule(progress)), float)
        assert copy(progress) == schedule(progress)


def test_a_schedule_of_ones_own():
    class Square(Schedule):
        def __call__(self, progress):
            return 4 * progress**2

    assert Moment(0.0, 1.0, 2).value(Square()) == 1.0
    with pytest.raises(TypeError, match=r"Schedule must define __call__\(progress\); derive"):
        Schedule()(0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("kind", "names"), [(Constant, ["value"]), *((k, ["start", "stop"]) for k in (Linear, Cosine, Parabolic))]
)
def test_schedules_are_of_finite_numbers(kind, names, bad):
    for name in names:
        with pytest.raises(ValueError, match=f"^{name} must be a finite number"):
            kind(**dict.fromkeys(names, 1.0) | {name: bad})
    with pytest.raises(ValueError, match=r"^values must be a finite number"):
        Steps((1.0, bad), at=(0.5,))


@pytest.mark.parametrize("at", [(), (0.5,), (0.5, 0.5), (0.6, 0.4), (-0.1, 0.5), (0.5, 1.1), (0.2, 0.4, 0.6)])
def test_cuts_are_as_many_as_needed_and_increase_inside_the_training(at):
    with pytest.raises(ValueError, match=r"^at must hold 2 increasing fractions of the training in \[0, 1\]"):
        Steps((1.0, 2.0, 3.0), at=at)
    with pytest.raises(ValueError, match=r"^at must hold 2 increasing fractions"):
        Join((Constant(1.0), Constant(2.0), Constant(3.0)), at=at)


def test_join_of_lists_is_a_value():
    schedule = Join([Constant(1.0), Linear(0.0, 1.0)], at=[0.5])
    assert schedule == join((Constant(1.0), Linear(0.0, 1.0)), at=(0.5,))
    assert hash(schedule) == hash(join((Constant(1.0), Linear(0.0, 1.0)), at=(0.5,)))


def test_bounds_of_cyclical():
    with pytest.raises(ValueError, match=r"factor must be a finite number in \[1, inf\], got 0.99"):
        Cyclical(0.99)
    with pytest.raises(ValueError, match=r"end must be one of 'last_epoch', 'epochs', got 'epoch'"):
        Cyclical(4.0, "epoch")
