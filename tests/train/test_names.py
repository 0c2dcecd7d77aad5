"""Names of losses and methods are available without torch."""

import pytest

from equipoise.catalogue import CATALOGUE, find
from equipoise.data import EMBEDDED
from equipoise.expressions import (
    METHOD_NAMES,
    RULE_AND_LOSS,
    canonical,
    check_loss_names,
    check_method_name,
    is_method,
    list_losses,
)
from equipoise.train import methods
from equipoise.train.loss_text import WEIGHTS
from equipoise.train.spec import RunSpec, SpecError


def test_the_methods_are_those_that_there_are():
    assert tuple(methods.METHODS) == METHOD_NAMES
    for text in ("sdn", "SDN:feature=ce", "ldam_drw", "tau-norm:tau=1", "none"):
        assert is_method(text)
    assert not is_method("focal")
    assert not is_method("mine.py:sdn")


def test_one_rule_for_weights_is_a_loss_too():
    known = {name for entry in CATALOGUE for name in entry.names}
    assert {rule for rule in WEIGHTS if rule in known} == {RULE_AND_LOSS}


def test_terms():
    assert canonical("ce+ 1e+2*dice:per_image=true") == "ce + 100 * dice(per_image=True)"
    assert canonical("2*../my losses/tail.py:Tail:k=1:weight=drw") == (
        '2 * "../my losses/tail.py:Tail"(k=1, weight=drw)'
    )


@pytest.mark.parametrize(
    "line", ["focal:gamma=1,mine.py:Tail", "focal:gamma=1 mine.py:Tail", "focal:gamma=1, mine.py:Tail"]
)
def test_user_defined_losses(line):
    assert list_losses(line) == ["focal:gamma=1", "mine.py:Tail"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ce+focl", "got 'focl'; did you mean 'focal'"),
        ("gone.py:Tail", "gone.py:Tail: the file must exist, found none at .*gone.py; check the path"),
        ("gone.py", "must be FILE.py:NAME, got 'gone.py'; append the"),
        ("gone.py:a=3", "must be FILE.py:NAME, got 'gone.py:a=3'"),
    ],
)
def test_unknown_losses(text, words):
    with pytest.raises(ValueError, match=words):
        check_loss_names(text)


def test_unknown_methods():
    with pytest.raises(ValueError, match="got 'sdnn'; did you mean 'sdn'"):
        check_method_name("sdnn:feature=ce")
    with pytest.raises(ValueError, match="got 'xyz'; known are none, sdn"):
        check_method_name("xyz")


def test_quick_check():
    """The complete check finds all errors of the quick check, but not the reverse."""
    settings = {"data": "nowhere", "loss": "focl", "epochs": 0}
    with pytest.raises(SpecError, match="3 mistakes"):
        RunSpec.check(settings, quick=True, here=True)
    with pytest.raises(SpecError, match="2 mistakes"):  # elsewhere the data may be there
        RunSpec.check(settings, quick=True)
    with pytest.raises(SpecError, match="3 mistakes"):
        RunSpec.check(settings, here=True)
    later = {"data": "digits-lt", "loss": "focal:gama=2", "model": "resnet19", "augment": "flop"}
    assert RunSpec.check(later, quick=True, here=True).loss == "focal(gama=2)"
    with pytest.raises(SpecError, match="3 mistakes"):
        RunSpec.check(later)
    assert [RunSpec.check({"data": name}, here=True).data for name in EMBEDDED] == list(EMBEDDED)


def test_every_name_of_the_catalogue_is_known():
    for entry in CATALOGUE:
        check_loss_names(entry.text)
        assert find(entry.text) is entry
