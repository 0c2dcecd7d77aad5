"""``inspect.signature``, and so editors and notebooks, show the arguments that work, with their defaults and types."""

from __future__ import annotations

import inspect
import types

import pytest
import torch

import equipoise as eq
from equipoise import calibration, functional, losses, metrics, schedules, weights
from equipoise.catalogue import CATALOGUE
from tests.losses.helpers import each, make

C = 3
PUBLIC = [
    pytest.param(made, id=name)
    for package in (losses, metrics, calibration, functional, schedules, weights)
    for name in package.__all__
    if callable(made := getattr(package, name)) and not isinstance(made, types.UnionType)
]


@pytest.mark.parametrize("made", PUBLIC)
def test_nothing_hides_behind_stars(made):
    if isinstance(made, type) and issubclass(made, (Warning, Exception)):
        pytest.skip("an exception takes anything")
    parameters = inspect.signature(made).parameters.values()
    assert [str(one) for one in parameters if one.kind is one.VAR_KEYWORD] == []
    assert [str(one) for one in parameters if one.kind is one.VAR_POSITIONAL] in ([], ["*arrays: 'Tensor'"])


@each(CATALOGUE)
def test_arguments_of_a_loss_are_those_that_work(entry):
    kind = getattr(eq, entry.name)
    shown = inspect.signature(kind).parameters
    plain = make(entry, C)
    for name, parameter in shown.items():
        assert not isinstance(parameter.annotation, str)
        assert parameter.annotation is not parameter.empty
        if parameter.default is not parameter.empty:
            assert repr(make(entry, C, **{name: parameter.default})) == repr(plain)
            own = getattr(plain, name, None)
            if isinstance(own, (bool, int, float, str)) and parameter.default is not None:
                assert own == parameter.default
    base = {"softmax": eq.SoftmaxLoss, "sigmoid": eq.SigmoidLoss, "region": eq.TverskyLoss}[entry.link]
    for name, parameter in inspect.signature(base).parameters.items():
        if name not in shown:
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
                make(entry, C, **{name: parameter.default})


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("RecallLoss", {"reduction": "valid_mean", "sync": True}),
        ("AsymmetricLoss", {"reduction": "batch_mean", "sync": False, "margin": 0.05}),
        ("CyclicalAsymmetricLoss", {"label_smoothing": 0.1, "reduction": "mean"}),
    ],
)
def test_defaults_are_those_of_the_loss_itself(name, changed):
    shown = inspect.signature(getattr(eq, name)).parameters
    assert {key: shown[key].default for key in changed} == changed


def test_defaults_of_functions_are_those_they_use():
    shown = inspect.signature(functional.recall_loss).parameters
    assert shown["reduction"].default == "valid_mean"
    assert shown["label_smoothing"].default == 0.0
    logits, targets = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
    assert functional.recall_loss(logits, targets) == functional.recall_loss(logits, targets, reduction="valid_mean")
    assert functional.recall_loss(logits, targets) != functional.recall_loss(logits, targets, reduction="sum")


def test_options_of_torchmetrics_have_its_defaults():
    metric, shown = metrics.CalibrationError(), inspect.signature(metrics.CalibrationError).parameters
    for name in ("compute_on_cpu", "dist_sync_on_step", "process_group", "sync_on_compute", "compute_with_cache"):
        assert shown[name].default == getattr(metric, name)


def test_a_class_of_the_users_own():
    class Own(eq.FocalLoss):
        def __init__(self, sharpness=2.0, **options):
            super().__init__(sharpness, **options)

    class Short(eq.FocalLoss):
        pass

    assert list(inspect.signature(Own).parameters) == ["sharpness", "options"]
    assert Own(3.0, reduction="sum").reduction == "sum"
    assert inspect.signature(Short) == inspect.signature(eq.FocalLoss)


def test_the_signature_of_a_loss_that_is_made_is_not_that_of_its_class():
    assert "gamma" not in inspect.signature(eq.FocalLoss()).parameters
