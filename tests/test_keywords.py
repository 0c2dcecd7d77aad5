"""Keywords of a call that no loss knows, and names of others; the rest is in ``tests/losses/test_errors.py``."""

import re

import pytest
import torch

import equipoise as eq
from equipoise._keywords import EXPLAINED

LOGITS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
INDICES, LABELS = torch.tensor([0, 1, 2, 0]), torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("loss", "keyword", "hint"),
    [
        (eq.FocalLoss(), "normaliser", "did you mean 'normalizer'?"),
        (eq.FocalLoss(), "num_items_in_batch", "pass normalizer=num_items_in_batch"),
        (eq.OHEMLoss(), "num_items_in_batch", "pass normalizer=num_items_in_batch"),
        (eq.FocalLoss(), "reduction", "set it in FocalLoss(reduction=...)"),
        (eq.RecallLoss(3), "sample_weight", "it takes logits, targets, normalizer"),
        (eq.AsymmetricLoss(), "element_weights", "did you mean 'element_weight'?"),
        (eq.DiceLoss(), "num_items_in_batch", "it takes logits, targets"),
        (eq.LovaszSoftmaxLoss(), "targetss", "did you mean 'targets'?"),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_unknown_keywords_of_a_call(loss, keyword, hint, compiled):
    targets = LABELS if isinstance(loss, eq.SigmoidLoss) else INDICES
    called = torch.compile(loss, backend="eager") if compiled else loss
    message = f"a call of {type(loss).__name__} got an unexpected keyword argument {keyword!r}; {hint}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        called(LOGITS, targets, **{keyword: 3})


@pytest.mark.parametrize(
    ("made", "keyword", "hint"),
    [
        (eq.FocalLoss, "alpha", EXPLAINED["alpha"]),
        (eq.BinaryFocalLoss, "pos_weight", EXPLAINED["pos_weight"]),
        (eq.AsymmetricLoss, "clip", "pass margin=clip"),
        (eq.AsymmetricLoss, "disable_torch_grad_focal_loss", "pass detach_focus=disable_torch_grad_focal_loss"),
        (eq.LDAMLoss, "cls_num_list", "pass counts=cls_num_list"),
        (eq.LDAMLoss, "s", "pass scale=s"),
        (eq.ClassBalancedLoss, "samples_per_cls", "pass counts=samples_per_cls"),
    ],
)
def test_names_of_published_code(made, keyword, hint):
    message = f"{made.__name__} got an unexpected keyword argument {keyword!r}; {hint}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        made(**{keyword: 1})


@pytest.mark.parametrize("loss", [eq.FocalLoss(), eq.OHEMLoss(), eq.AsymmetricLoss(), eq.DiceLoss()], ids=repr)
def test_a_loss_that_refuses_keywords_is_one_graph(loss):
    targets = LABELS if isinstance(loss, eq.SigmoidLoss) else INDICES
    known = {} if isinstance(loss, eq.DiceLoss) else {"normalizer": 3.0}
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(LOGITS, targets, **known), loss(LOGITS, targets, **known))
