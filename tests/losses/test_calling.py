"""How losses are made and called by people who come from elsewhere: names, words and mistakes of other libraries."""

import re
import warnings

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import equipoise as eq
from equipoise import functional
from equipoise.catalogue import CATALOGUE
from tests.losses.helpers import REGION, SIGMOID, SOFTMAX, batch_of, each, indices_of, logits_of, make

C = 3
EXACT = {"rtol": 0.0, "atol": 0.0}


@each(CATALOGUE)
def test_names_of_torch(entry):
    """``input`` and ``target`` are logits and targets, with hooks, in any mixture; all other keywords as ever."""
    loss = make(entry, C)
    logits, targets = batch_of(entry, (6, C), ignored=0.2)
    expected, seen = loss(logits, targets), []
    loss.register_forward_pre_hook(lambda *call: seen.append(sorted(call[2])), with_kwargs=True)
    loss.register_forward_hook(lambda module, inputs, value: value * 1.0)
    assert_close(loss(input=logits, target=targets), expected, **EXACT)
    assert_close(loss(logits, target=targets), expected, **EXACT)
    assert_close(loss(target=targets, logits=logits), expected, **EXACT)
    assert seen == [["logits", "targets"], ["targets"], ["logits", "targets"]]
    with pytest.raises(TypeError, match="multiple values for argument 'logits'"):
        loss(logits, input=logits)
    with pytest.raises(TypeError, match="unexpected keyword argument 'input'"):
        loss(logits=logits, targets=targets, input=logits)
    with pytest.raises(TypeError, match="unexpected keyword argument 'targett'"):
        loss(logits, targets, targett=targets)


def test_names_of_torch_in_compiled_code():
    loss, logits, targets = eq.FocalLoss(), logits_of(5, C), indices_of((5, C))
    for compiled in (
        torch.compile(loss, fullgraph=True, backend="eager"),
        torch.compile(lambda input, target: loss(input=input, target=target), fullgraph=True, backend="eager"),
    ):
        assert_close(compiled(input=logits, target=targets), loss(logits, targets), **EXACT)


@each([*SOFTMAX, *SIGMOID])
def test_the_word_batchmean_of_torch(entry):
    with pytest.raises(ValueError, match=r"^reduction must be .*got 'batchmean'; did you mean 'batch_mean'\?$"):
        make(entry, C, reduction="batchmean")


def test_words_of_reductions_in_functions_and_region_losses():
    batch = logits_of(5, C), indices_of((5, C))
    with pytest.raises(ValueError, match=r"did you mean 'batch_mean'\?$"):
        functional.focal_loss(*batch, reduction="batchmean")
    for entry in REGION:
        with pytest.raises(ValueError, match=r"^reduction must be one of 'mean', 'sum', 'none', got 'batchmean'; "):
            make(entry, C, reduction="batchmean")
    with pytest.raises(ValueError, match="pick one of these words"):
        make(CATALOGUE[0], C, reduction="xyz")


@pytest.mark.parametrize(
    ("weight", "came", "advice"),
    [
        ({"cat": 2.0, "dog": 1.0}, "an object of type dict", "[weight[c] for c in names_of_the_classes]"),
        ({0: 2.0, 1: 1.0}, "an object of type dict", "[weight[c] for c in range(C)]"),
        ("balanced", "the word 'balanced'", "inverse_frequency(counts)"),
    ],
    ids=["names", "indices", "word"],
)
def test_weights_must_be_a_vector(weight, came, advice):
    batch = logits_of(5, C), indices_of((5, C))
    for build in (
        lambda: eq.FocalLoss(weight=weight),
        lambda: eq.CrossEntropyLoss(weight),
        lambda: eq.BinaryFocalLoss(weight=weight),
        lambda: functional.focal_loss(*batch, weight=weight),
    ):
        with pytest.raises(TypeError, match=f"^weight must be one number per class.*{re.escape(came)}; ") as raised:
            build()
        assert advice in str(raised.value)
        assert "\n" not in str(raised.value)


NUMBER_FIRST = {
    eq.FocalLoss: "gamma",
    eq.BinaryFocalLoss: "gamma",
    eq.AsymmetricLoss: "gamma_pos",
    eq.AsymmetricSoftmaxLoss: "gamma_pos",
    eq.OHEMLoss: "keep",
    eq.MMCELoss: "strength",
    eq.TverskyLoss: "alpha",
}


@pytest.mark.parametrize("kind", NUMBER_FIRST, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("vector", [torch.tensor([1.0, 2.0]), [1.0, 2.0], (1.0, 2.0), np.ones(2)], ids=type)
def test_class_weights_as_first_argument(kind, vector):
    """The commonest mistake of those who come from another focal loss."""
    name = NUMBER_FIRST[kind]
    with pytest.raises(TypeError, match=f"^the first argument of {kind.__name__} is {name}, got ") as raised:
        kind(vector)
    assert ("weight=..." in str(raised.value)) == (kind is not eq.TverskyLoss)
    assert (f"keyword argument, {name}=..." in str(raised.value)) == name.startswith("gamma")


def test_exponents_of_the_classes_by_keyword_and_numbers_by_position():
    batch = logits_of(5, C), indices_of((5, C))
    by_class = eq.FocalLoss(gamma=torch.tensor([2.0, 2.0, 2.0]))(*batch)
    for number in (2, 2.0, np.float64(2.0), torch.tensor(2.0)):
        assert_close(eq.FocalLoss(number)(*batch), by_class)

    class Own(eq.SoftmaxLoss):
        def __init__(self, gamma):
            super().__init__(weight=gamma)

    assert_close(Own([1.0, 1.0, 1.0])(*batch), eq.CrossEntropyLoss()(*batch))


@each([*SOFTMAX, *REGION])
def test_probabilities_are_pointed_out_once(entry):
    probs = logits_of(4, C, 2, grad=False).softmax(1)
    targets = indices_of((4, C, 2))
    loss = make(entry, C)
    with pytest.warns(UserWarning, match=r"logits must be raw scores .*sum to 1.*before its softmax"):
        loss(probs, targets)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(probs, targets)
        make(entry, C)(logits_of(4, C, 2), targets)  # logits
        make(entry, C)(torch.rand(4, C, 2), targets)  # in [0, 1], but no distributions


@each(SIGMOID)
def test_numbers_between_0_and_1_are_logits_of_a_sigmoid(entry, recwarn):
    _, targets = batch_of(entry, (4, C, 2))
    make(entry, C)(torch.rand(4, C, 2).softmax(1), targets)
    assert not recwarn.list
