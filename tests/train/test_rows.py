"""Rows of a comparison: losses and methods with their own training settings."""

from __future__ import annotations

import pytest

from equipoise.expressions import canonical
from equipoise.train.rows import expand_rows, is_same_row, read_row
from equipoise.train.spec import ROW_SETTINGS, RunSpec, SpecError


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("ce(lr=0.01)", {"loss": "ce", "lr": 0.01}),
        ("focal(gamma=2, sampler=balanced)", {"loss": "focal(gamma=2)", "sampler": "balanced"}),
        ("recall(momentum=0.1, lr=1e-3)", {"loss": "recall(momentum=0.1)", "lr": 0.001}),
        ("ce(momentum=0.8)", {"loss": "ce", "momentum": 0.8}),
        ("ce(lr=0.1) + 0.5 * dice", {"loss": "ce + 0.5 * dice", "lr": 0.1}),
        ("ce(lr=0.1) + 0.5 * dice(lr=0.1, clip=1)", {"loss": "ce + 0.5 * dice", "lr": 0.1, "clip": 1}),
        ("crt(lr=0.1, epochs=3, weight_decay=0)", {"method": "crt(epochs=3, lr=0.1)", "weight_decay": 0}),
        ("sdn(feature=focal(gamma=1), ema=0.99)", {"method": "sdn(feature=focal(gamma=1))", "ema": 0.99}),
        ("ce(augment='flip,crop:4')", {"loss": "ce", "augment": "flip,crop:4"}),
        ("ce(schedule=step, milestones=(0.5, 0.8))", {"loss": "ce", "schedule": "step", "milestones": (0.5, 0.8)}),
        ("ce(schedule=one-cycle)", {"loss": "ce", "schedule": "one-cycle"}),
        ("ce", {"loss": "ce"}),
        ("auto", {"loss": "auto"}),
    ],
)
def test_settings_are_distinguished_from_arguments(text: str, settings: dict[str, object]) -> None:
    row = read_row(text)
    assert row.run_settings() == settings
    assert RunSpec(data="digits-lt", **row.run_settings()).loss == settings.get("loss", "auto")
    assert str(read_row(str(row))) == str(row)


def test_text_of_a_row_is_canonical() -> None:
    text = "FocalLoss:gamma=2:lr=0.01"
    assert str(read_row(text)) == canonical(text) == "focal(gamma=2, lr=0.01)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ce(lr=-1)", "lr: input should be greater than 0, got -1"),
        ("ce(sampler=fair)", "'progressive'"),
        ("ce(epochs=1.5)", "epochs: input should be a valid integer"),
        ("ce(augment=flop)", "augment: "),
        ("ce(lr=[0.1, 0.2])", "lr must be one value, got [0.1, 0.2]"),
        ("ce(lr=0.1) + 0.5 * dice(lr=0.2)", "share its settings, got lr twice"),
        ("ce(monitor=nll)", "got 'monitor'"),
        ("ce(seed=1)", "got 'seed'"),
        ("ce(data=photos)", "got 'data'"),
        ("sdn(feature=ce(lr=0.1))", "got 'lr'"),
    ],
)
def test_mistakes(text: str, words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the words are compared below)
        read_row(text)
    assert words in str(error.value)


def test_candidates_of_settings() -> None:
    assert expand_rows("focal(gamma=[1, 2], lr=[0.1, 0.2])") == [
        f"focal(gamma={gamma}, lr={lr})" for gamma in (1, 2) for lr in (0.1, 0.2)
    ]


def test_rows_with_other_settings_differ() -> None:
    assert is_same_row("ce(lr=0.10, clip=1)", "CrossEntropyLoss:clip=1:lr=0.1")
    assert not is_same_row("ce(lr=0.1)", "ce(lr=0.2)")
    assert is_same_row("auto", "bce")
    assert not is_same_row("auto", "bce(lr=0.1)")


def test_settings_of_a_method_reach_its_first_stage() -> None:
    assert str(read_row("crt(sampler=balanced)").with_expression("focal(gamma=1)")) == (
        "focal(gamma=1, sampler=balanced)"
    )


def test_every_setting_has_a_field() -> None:
    assert RunSpec.model_fields.keys() >= ROW_SETTINGS
    assert {"lr", "sampler", "augment", "epochs"} <= ROW_SETTINGS
    assert not ROW_SETTINGS & {"monitor", "data", "seed", "data_seed", "model", "precision", "devices"}


@pytest.mark.parametrize("name", ["loss", "method"])
def test_one_training_has_flags_for_its_settings(name: str) -> None:
    text = {"loss": "ce(lr=0.1)", "method": "sdn(lr=0.1)"}[name]
    with pytest.raises(SpecError, match=r"write (ce|sdn) and --lr 0\.1"):
        RunSpec.check({"data": "digits-lt", name: text})
