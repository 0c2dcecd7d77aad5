"""Classifiers retrained after training: cRT, learnable weight scaling, tau-normalisation, nearest class mean."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from equipoise import BalancedSoftmaxLoss, CyclicalFocalLoss
from equipoise.heads import (
    CosineClassifier,
    KeptFeatures,
    LearnableWeightScaling,
    MetaEmbedding,
    NearestClassMean,
    choose_tau,
    keep_features,
    retrain_classifier,
    tau_normalize,
    tau_normalized,
)
from equipoise.models import MLP, features_of, find_classifier, replace_classifier
from tests.golden.cases import load
from tests.models.cases import IMAGE, MAPS, OPTIONS, C, batch, build, pooled, says

HEADS = load("tau_norm_lws")
EVERY = sorted(OPTIONS)


def long_tail(seed=0, counts=(400, 60, 8), width=6, shift=2.0):
    """Overlapping Gaussian classes of very different counts."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    centres = shift * torch.eye(len(counts), width)
    return centres[labels] + torch.randn(len(labels), width, generator=draw), labels


def kept_long_tail(**options):
    rows, labels = long_tail(**options)
    return KeptFeatures(rows, labels, int(labels.max()) + 1)


def recalls(head, rows, labels):
    predicted = head(rows).argmax(1)
    return torch.stack([(predicted[labels == c] == c).float().mean() for c in range(int(labels.max()) + 1)])


def data(name):
    inputs = batch(name, count=8)
    shape = (8, *IMAGE[1:]) if name in MAPS else (8,)
    return inputs, torch.randint(0, C, shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", [*EVERY, "pooled"])
def test_every_head_fits_every_model(name):
    model = pooled().eval() if name == "pooled" else build(name).eval()
    inputs, labels = (torch.randn(8, 1, 6, 6), torch.arange(8) % C) if name == "pooled" else data(name)
    before = copy.deepcopy(model.state_dict())
    kept = keep_features(model, [(inputs, labels)])
    classifier = find_classifier(model).module
    expected = model(inputs).shape
    tau = choose_tau(kept.features, kept.labels, classifier.weight).tau
    scaling = LearnableWeightScaling(classifier)
    heads = [
        retrain_classifier(model, kept, epochs=2),
        retrain_classifier(model, kept, epochs=2, head=scaling),
        scaling.merge(),
        tau_normalized(classifier, tau),
        NearestClassMean.fit(kept),
        NearestClassMean.fit(kept, distance="cosine", transform="unit"),
        MetaEmbedding.after(model, kept),
    ]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())  # unchanged
    assert not any(parameter.grad is not None for parameter in model.parameters())
    for head in heads:
        replace_classifier(model, head)
        logits = model(inputs)
        assert logits.shape == expected
        assert logits.isfinite().all()
        assert find_classifier(model).num_classes == C
        with features_of(model) as view:
            assert view(inputs).features.shape[head.dim if hasattr(head, "dim") else 1] == kept.features.shape[1]


def test_classifier_retraining_reaches_rare_classes():
    rows, labels = long_tail()
    model = nn.Sequential(nn.Linear(6, 3))
    kept = KeptFeatures(rows, labels, 3)
    as_it_is = retrain_classifier(model, kept, power=1.0, epochs=30)
    balanced = retrain_classifier(model, kept, epochs=30)
    new, truth = long_tail(seed=1, counts=(200, 200, 200))
    assert recalls(as_it_is, new, truth)[2] < 0.6
    assert recalls(balanced, new, truth)[2] > recalls(as_it_is, new, truth)[2] + 0.15
    assert recalls(balanced, new, truth).mean() > recalls(as_it_is, new, truth).mean()


def test_retraining_matches_a_plain_loop():
    """One batch an epoch, classes as they are: the order within a batch does not matter."""
    kept = kept_long_tail(counts=(20, 8, 4))
    model = nn.Sequential(nn.Linear(6, 3))
    head = retrain_classifier(model, kept, power=1.0, epochs=5, batch_size=32, lr=0.1, seed=7)
    state = torch.random.get_rng_state()
    torch.manual_seed(7)
    plain = nn.Linear(6, 3)
    torch.random.set_rng_state(state)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(plain(kept.features), kept.labels).backward()
        optimizer.step()
        scheduler.step()
    assert_close(head.weight, plain.weight)
    assert_close(head.bias, plain.bias)


def test_the_seed_decides_and_the_global_generator_stays():
    kept, model = kept_long_tail(), nn.Sequential(nn.Linear(6, 3))
    state = torch.random.get_rng_state()
    first, second, other = (retrain_classifier(model, kept, epochs=2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, other.weight)


def test_the_head_is_of_the_kind_of_the_classifier():
    model = nn.Sequential(nn.Conv2d(6, 3, 1, bias=False)).double()
    rows, labels = long_tail()
    head = retrain_classifier(model, KeptFeatures(rows, labels, 3, dim=-3), epochs=1)
    assert isinstance(head, nn.Conv2d)
    assert head.bias is None
    assert head.weight.dtype is torch.float64
    assert not head.weight.is_set_to(model[0].weight)


def test_a_view_on_the_classifier_is_not_copied_with_it():
    model = MLP(4, 3, hidden=(8,))
    with features_of(model) as view:
        kept = keep_features(model, [(torch.randn(9, 4), torch.arange(9) % 3)])
        for head in (retrain_classifier(model, kept, epochs=1), LearnableWeightScaling(model.classifier)):
            assert not any(part._forward_pre_hooks for part in head.modules())
        assert view(torch.randn(2, 4)).features.shape == (2, 8)


def test_losses_with_schedules_and_other_heads():
    kept, model = kept_long_tail(), nn.Sequential(nn.Linear(6, 3))
    loss = CyclicalFocalLoss(epochs=4)
    retrain_classifier(model, kept, loss=loss, epochs=4)
    assert loss.position.tolist() == [3 / 4, 3.0]
    cosine = CosineClassifier(6, 3, scale=16.0)
    assert retrain_classifier(model, kept, head=cosine, epochs=5) is cosine
    new, truth = long_tail(seed=1, counts=(100, 100, 100))
    assert recalls(cosine, new, truth).min() > 0.5
    assert retrain_classifier(model, kept, loss=BalancedSoftmaxLoss([400, 60, 8]), power=1.0).weight.isfinite().all()


def test_several_labels():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 6, generator=draw)
    labels = (rows[:, :3] > torch.tensor([0.0, 0.5, 1.0])).float()
    labels[0, 1] = -1.0
    head = retrain_classifier(nn.Sequential(nn.Linear(6, 3)), KeptFeatures(rows, labels, 3), epochs=60, batch_size=50)
    right = (head(rows) > 0) == (labels == 1)
    assert right[1:].float().mean() > 0.9


# ---------------------------------------------------------------------------------------------------------------------
# Learnable weight scaling, tau
# ---------------------------------------------------------------------------------------------------------------------


def published_classifier(case):
    weight, bias = torch.tensor(case.arrays["weight"]), torch.tensor(case.arrays["bias"])
    layer = nn.Linear(weight.shape[1], weight.shape[0]).double()
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer, torch.tensor(case.arrays["features"])


def test_scaling_equals_the_published_code():
    case = HEADS[-1]
    assert case.params["fn"] == "LWS"
    layer, features = published_classifier(case)
    head = LearnableWeightScaling(layer)
    head.scales.data.copy_(torch.tensor(case.params["scales"], dtype=torch.float64))
    logits = head(features)
    np.testing.assert_allclose(logits.detach().numpy(), case.outputs["logits"], rtol=1e-10, atol=1e-10)
    F.cross_entropy(logits, torch.tensor(case.params["targets"])).backward()
    np.testing.assert_allclose(head.scales.grad.numpy(), case.outputs["grad_scales"], rtol=1e-10, atol=1e-10)
    assert [name for name, each in head.named_parameters() if each.requires_grad] == ["scales"]
    assert layer.weight.requires_grad  # that of the caller
    assert_close(head.merge()(features), logits, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in HEADS if case.params["fn"] == "tau_norm"], ids=str)
def test_tau_equals_the_published_code(case):
    layer, features = published_classifier(case)
    head = tau_normalized(layer, case.params["tau"])
    np.testing.assert_allclose(head(features).detach().numpy(), case.outputs["logits"], rtol=1e-10, atol=1e-10)
    kept = tau_normalized(layer, case.params["tau"], keep_bias=True)
    assert_close(kept(features), head(features) + layer.bias)
    assert_close(kept.weight, tau_normalize(layer.weight.detach(), case.params["tau"]), check_stride=False)


def test_scaling_is_trained_in_place_and_lowers_the_balanced_loss():
    rows, labels = long_tail()
    model, kept = nn.Sequential(nn.Linear(6, 3)), KeptFeatures(rows, labels, 3)
    replace_classifier(model, retrain_classifier(model, kept, power=1.0, epochs=30, weight_decay=0.0))
    frozen = model[0].weight.clone()
    head = retrain_classifier(model, kept, head=LearnableWeightScaling(model[0]), epochs=30)
    assert torch.equal(head.classifier.weight, frozen)
    assert not torch.equal(head.scales, torch.ones(3))
    new, truth = long_tail(seed=1, counts=(200, 200, 200))
    assert F.cross_entropy(head(new), truth) < F.cross_entropy(model(new), truth) - 0.1
    plain = head.merge()
    assert_close(plain(new), head(new))
    assert all(parameter.requires_grad for parameter in plain.parameters())


# ---------------------------------------------------------------------------------------------------------------------
# Nearest class mean
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
@pytest.mark.parametrize("transform", ["centred", "unit", "none"])
def test_nearest_class_mean_matches_a_loop(distance, transform):
    kept = kept_long_tail(counts=(30, 9, 4))
    new = torch.randn(20, 6)
    outputs = NearestClassMean.fit(kept, distance=distance, transform=transform)(new)

    centre = kept.features.mean(0)

    def change(row):
        row = row - centre if transform == "centred" else row
        return row / row.norm() if transform != "none" else row

    for n, row in enumerate(new):
        for c in range(3):
            mean = torch.stack([change(each) for each in kept.features[kept.labels == c]]).mean(0)
            x = change(row)
            score = -((x - mean) ** 2).sum() if distance == "euclidean" else x @ mean / (x.norm() * mean.norm())
            assert_close(outputs[n, c], score, rtol=1e-4, atol=1e-4)


def test_a_class_without_samples_is_never_the_nearest():
    kept = KeptFeatures(torch.eye(3), torch.tensor([0, 1, 3]), 5)
    for distance in ("euclidean", "cosine"):
        scores = NearestClassMean.fit(kept, distance=distance)(torch.randn(50, 3))
        assert scores.isfinite().all()
        assert not (set(scores.argmax(1).tolist()) & {2, 4})


def test_nearest_class_mean_is_loaded_from_its_state():
    fitted = NearestClassMean.fit(KeptFeatures(torch.randn(9, 4), torch.arange(9) % 2, 3))
    loaded = NearestClassMean(torch.zeros(3, 4))
    loaded.load_state_dict(fitted.state_dict())
    new = torch.randn(5, 4)
    assert torch.equal(loaded(new), fitted(new))


def test_nearest_class_mean_on_maps():
    kept = KeptFeatures(torch.randn(9, 4), torch.arange(9) % 3, 3, dim=-3)
    head, maps = NearestClassMean.fit(kept), torch.randn(2, 4, 5, 6)
    scores = head(maps)
    assert scores.shape == (2, 3, 5, 6)
    rows = NearestClassMean.fit(KeptFeatures(kept.features, kept.labels, 3))
    assert_close(scores[1, :, 2, 3], rows(maps[1, :, 2, 3].unsqueeze(0))[0])


# ---------------------------------------------------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (lambda m, k: retrain_classifier(m, k, epochs=0), ValueError, ("epochs", "integer", "got 0")),
        (lambda m, k: retrain_classifier(m, k, epochs=1.5), TypeError, ("epochs", "integer", "got 1.5")),
        (lambda m, k: retrain_classifier(m, k, batch_size=1.5), TypeError, ("batch_size", "integer", "got 1.5")),
        (lambda m, k: retrain_classifier(m, k.features), TypeError, ("kept", "from keep_features", "got Tensor")),
        (lambda m, k: NearestClassMean.fit(k.features), TypeError, ("kept", "from keep_features", "got Tensor")),
        (lambda m, k: MetaEmbedding.after(m, k.features), TypeError, ("kept", "from keep_features", "got Tensor")),
        (lambda m, k: retrain_classifier(m, k, loss="focal"), TypeError, ("loss", "called with", "got str 'focal'")),
        (lambda m, k: retrain_classifier(m, k, head="lws"), TypeError, ("head", "nn.Module", "got str", "Learnable")),
        (
            lambda m, k: retrain_classifier(m, k, head=nn.Linear(3, 5)),
            ValueError,
            ("head", "6 features to 3 logits", "got Linear that fails", "use the sizes"),
        ),
        (
            lambda m, k: retrain_classifier(m, k, head=nn.Linear(6, 4)),
            ValueError,
            ("head", "6 features to 3 logits", "got Linear with 4", "use the sizes"),
        ),
        (lambda m, k: retrain_classifier(m, k, lr=0.0), ValueError, ("lr",)),
        (lambda m, k: retrain_classifier(m, k, head=nn.Identity()), ValueError, ("head", "parameters")),
        (lambda m, k: retrain_classifier(nn.Linear(6, 4), k), ValueError, ("kept", "4 classes", "3 classes")),
        (lambda m, k: retrain_classifier(nn.Linear(5, 3), k), ValueError, ("kept", "width 5", "width 6")),
        (lambda m, k: LearnableWeightScaling(nn.Conv2d(6, 3, 3)), TypeError, ("classifier", "1x1", "(3, 6, 3, 3)")),
        (
            lambda m, k: LearnableWeightScaling(m),
            TypeError,
            ("classifier", "got Sequential; pass find_classifier(model).module"),
        ),
        (lambda m, k: tau_normalized(m, 1.0), TypeError, ("classifier", "got Sequential; pass find_classifier")),
        (lambda m, k: tau_normalized(nn.Conv2d(6, 3, 1, groups=3), 1.0), TypeError, ("classifier", "(3, 2, 1, 1)")),
        (lambda m, k: tau_normalized(nn.LazyLinear(3), 1.0), ValueError, ("the classifier", "LazyLinear", "a batch")),
        (
            lambda m, k: choose_tau(k.features, k.labels, torch.zeros(3, 6, 3, 3)),
            ValueError,
            ("features", "(C, D)", "(3, 6, 3, 3)"),
        ),
        (lambda m, k: tau_normalized(CosineClassifier(6, 3), 1.0), TypeError, ("classifier", "linear layer")),
        (lambda m, k: tau_normalized(m[0], -1.0), ValueError, ("tau",)),
        (lambda m, k: NearestClassMean.fit(k, distance="l2"), ValueError, ("distance", "'cosine'")),
        (lambda m, k: NearestClassMean.fit(k, transform="cl2n"), ValueError, ("transform", "'centred'")),
        (lambda m, k: NearestClassMean(torch.zeros(3)), ValueError, ("means", "(C, D)")),
    ],
)
def test_errors(call, error, parts):
    with pytest.raises(error, match=says(*parts)):
        call(nn.Sequential(nn.Linear(6, 3)), kept_long_tail())


def test_every_worker_trains_the_same_head(monkeypatch):
    """Also the second of two, which does not take part of the samples but all."""
    rows, labels = long_tail(counts=(40, 12, 5))
    model = MLP(6, 3, hidden=(4,))
    kept = keep_features(model, [(rows, labels)])
    alone = retrain_classifier(model, kept, epochs=1, batch_size=16)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    for rank in range(2):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        head = retrain_classifier(model, kept, epochs=1, batch_size=16)
        assert_close(head.state_dict(), alone.state_dict(), rtol=0, atol=0)
