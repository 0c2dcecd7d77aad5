"""The catalogue lists every public loss, each entry works, and losses are found by any sensible name."""

import subprocess
import sys

import pytest
import torch

import equipoise
from equipoise.catalogue import CATALOGUE, Entry, find, long_tail

COMPOSABLE = {"SigmoidLoss", "SoftmaxLoss"}  # made of parts by the user, not a loss with a name of its own


def batch(entry: Entry, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shape = (4, num_classes, 3, 3) if entry.link == "region" else (8, num_classes)
    logits = torch.randn(shape, generator=draw, dtype=torch.float64, requires_grad=True)
    if entry.link == "sigmoid":
        return logits, torch.randint(0, 2, shape, generator=draw).double()
    return logits, torch.randint(0, num_classes, (shape[0], *shape[2:]), generator=draw)


def test_every_public_loss_is_listed_once():
    public = {name for name in equipoise.__all__ if name.endswith("Loss")} - COMPOSABLE
    assert sorted(entry.name for entry in CATALOGUE) == sorted(public)


@pytest.mark.parametrize("num_classes", [1, 2, 5])
@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_an_entry_builds_a_loss_that_trains(entry, num_classes, recwarn):
    loss = entry.build(num_classes)
    assert type(loss) is getattr(equipoise, entry.name)
    logits, targets = batch(entry, num_classes)
    value = loss(logits, targets)
    value.backward()
    assert value.shape == ()
    assert value.isfinite()
    assert logits.grad.isfinite().all()
    assert num_classes == 1 or logits.grad.abs().sum() > 0
    warned = [str(one.message) for one in recwarn.list]
    assert [text for text in warned if "softmax over one class" not in text] == []  # scheduled losses have been moved
    assert bool(warned) == (num_classes == 1 and entry.link != "sigmoid")


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_texts_are_whole_sentences_without_internal_numbers(entry):
    assert entry.link in ("softmax", "sigmoid", "region")
    assert entry.formula
    assert entry.use.startswith("Use it ")
    assert entry.use.endswith(".")
    assert " not " in entry.use or "without" in entry.use or "neglects" in entry.use  # when not to use it
    assert not any(number in entry.source + entry.use for number in ("000", "001", "002", "003", "004"))
    assert "(" in entry.source
    assert "(" not in entry.paper


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CrossEntropyLoss", "CrossEntropyLoss"),
        ("cross-entropy", "CrossEntropyLoss"),
        ("cross_entropy_loss", "CrossEntropyLoss"),
        ("CROSSENTROPY", "CrossEntropyLoss"),
        ("ce", "CrossEntropyLoss"),
        ("focal", "FocalLoss"),
        ("flsd-53", "SampleDependentFocalLoss"),
        ("cfl", "CyclicalFocalLoss"),
        ("asl", "AsymmetricLoss"),
        ("casl", "CyclicalAsymmetricLoss"),
        ("recall", "RecallLoss"),
        ("cb", "ClassBalancedLoss"),
        ("ldam", "LDAMLoss"),
        ("la", "LogitAdjustedLoss"),
        ("balanced-softmax", "BalancedSoftmaxLoss"),
        ("ohem", "OHEMLoss"),
        ("brier", "BrierLoss"),
        ("mmce", "MMCELoss"),
        ("bce", "BinaryCrossEntropyLoss"),
        ("soft-iou", "SoftIoULoss"),
        ("Lovász", "LovaszSoftmaxLoss"),
        (" Dice Loss ", "DiceLoss"),
    ],
)
def test_find(name, expected):
    assert find(name).name == expected


def test_no_name_means_two_losses():
    names = [word for entry in CATALOGUE for word in (entry.name, entry.name.removesuffix("Loss"), *entry.short_names)]
    assert [find(name).name for name in names] == [
        entry.name for entry in CATALOGUE for _ in range(2 + len(entry.short_names))
    ]


def test_names_in_commands():
    assert find("recall").names == ("RecallLoss", "recall", "recall-ce")
    assert "soft-iou" in find("SoftIoULoss").names
    assert [find(name).name for entry in CATALOGUE for name in entry.names] == [
        entry.name for entry in CATALOGUE for _ in entry.names
    ]


def test_what_commands_and_reports_call_a_loss():
    texts = [entry.text for entry in CATALOGUE]
    assert [find(text).name for text in texts] == [entry.name for entry in CATALOGUE]
    assert all(entry.text in entry.names[1:] for entry in CATALOGUE)
    assert {"ce", "focal", "flsd-53", "cyclical-focal", "recall", "class-balanced", "balanced-softmax"} <= set(texts)
    assert {"bce", "asl"} <= set(texts)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("focall", "'focal'"),
        ("FocallLoss", "'focal'"),
        ("lovas", "'lovasz'"),
        ("loss", "'lovasz'"),
        ("dyce", "'dice' or 'ce'"),
        ("Clas_Balanced", "'class-balanced'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, meant):
    with pytest.raises(ValueError, match=rf"got '{name}'; did you mean {meant}\?$"):
        find(name)


@pytest.mark.parametrize("name", ["", "???", "xyz"])
def test_a_name_like_no_other_is_answered_with_the_list(name):
    with pytest.raises(ValueError, match=r"; known are ce, focal, flsd-53, .*lovasz-softmax$"):
        find(name)


def test_long_tail_falls_by_the_ratio_and_never_to_nothing():
    counts = long_tail(10, largest=5000, ratio=100)
    assert counts[0] == 5000
    assert counts[-1] == 50
    assert counts == sorted(counts, reverse=True)
    assert long_tail(1) == [10_000]
    assert min(long_tail(5, largest=3)) == 1


def test_importing_the_catalogue_imports_nothing_of_the_command_line():
    code = "import sys, equipoise.catalogue; print({'typer', 'rich', 'matplotlib', 'scipy'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
