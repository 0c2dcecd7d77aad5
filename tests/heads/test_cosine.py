"""Cosine classifiers: values, what they do not depend on, and LDAM-DRW with a scale that is applied once."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import equipoise as eq
from equipoise.data import digits_lt
from equipoise.heads import CosineClassifier, normalize_classifier
from equipoise.models import MLP, build_model, features_of, find_classifier
from equipoise.weights import Deferred, effective_number
from tests.models.cases import BATCH, OPTIONS, C, TwoHeads, batch, build, says

each = pytest.mark.parametrize("name", [name for name in OPTIONS if name != "resnet50"])


def published(features, weight):
    """``NormedLinear`` of the published LDAM-DRW, whose weight is (D, C)."""
    return F.normalize(features, dim=1).mm(F.normalize(weight.T, dim=0))


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------


def test_values_by_hand():
    head = CosineClassifier(2, 3, scale=10.0)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, 0.0], [-5.0, 5.0], [0.0, 0.0]]))
    outputs = head(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert_close(outputs, torch.tensor([[6.0, 10 * math.sqrt(0.02), 0.0], [0.0, 0.0, 0.0]]))


def test_equal_to_the_published_layer_with_its_gradients():
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(6, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    head = CosineClassifier(8, C, dtype=torch.float64)
    other = head.weight.detach().clone().mul_(3.0).requires_grad_()  # lengths of rows do not matter
    cosines, expected = head(features), published(features, other)
    assert_close(cosines, expected)
    incoming = torch.randn(6, C, generator=draw, dtype=torch.float64)
    gradients = torch.autograd.grad(cosines, [features, head.weight], incoming)
    wanted = torch.autograd.grad(expected, [features, other], incoming)
    assert_close(gradients[0], wanted[0])
    assert_close(gradients[1], 3.0 * wanted[1])  # the gradient of a direction falls with the length


def test_gradients_are_those_of_the_formula():
    head = CosineClassifier(4, 3, scale=7.0, dtype=torch.float64)
    features = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(head, {"weight": w}, (x,)), (features, head.weight)
    )


def test_maps_are_rows():
    head, rows = CosineClassifier(4, 3, dim=-3), CosineClassifier(4, 3)
    rows.load_state_dict(head.state_dict())
    maps = torch.randn(2, 4, 5, 6)
    expected = rows(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    assert_close(head(maps), expected)
    assert head(maps).shape == (2, 3, 5, 6)
    assert_close(head(maps[0]), expected[0])


def test_a_sample_without_features_does_not_blow_up():
    head = CosineClassifier(4, 3)
    features = torch.zeros(1, 4, requires_grad=True)
    head(features).sum().backward()
    assert features.grad.abs().max() < 10  # F.normalize: 1e12
    assert head.weight.grad.count_nonzero() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    head = CosineClassifier(64, C).to(dtype)
    features = torch.randn(8, 64).to(dtype)
    expected = published(features.double(), head.weight.detach().double())
    assert head(features).dtype is dtype
    assert_close(head(features).double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)
    assert not head(torch.zeros(1, 64, dtype=dtype)).isnan().any()


def test_autocast_keeps_float32():
    head, features = CosineClassifier(64, C), torch.randn(8, 64).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = head(features)
    assert outputs.dtype is torch.float32
    assert_close(outputs, published(features.float(), head.weight))


def test_rows_start_with_length_one_and_the_scale_is_saved():
    head = CosineClassifier(8, C)
    assert_close(head.weight.norm(dim=1), torch.ones(C))
    head.scale.fill_(30.0)
    other = CosineClassifier(8, C)
    other.load_state_dict(head.state_dict())
    features = torch.randn(4, 8)
    assert torch.equal(other(features), head(features))
    assert_close(head(features), 30.0 * published(features, head.weight))


def test_compiled():
    torch._dynamo.reset()
    head, maps = CosineClassifier(4, 3, dim=-3, scale=16.0), torch.randn(2, 4, 3, 3)
    assert_close(torch.compile(head, fullgraph=True, backend="eager")(maps), head(maps))


# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------


@each
def test_in_every_model(name):
    model = build(name)
    old = find_classifier(model).module
    cosine = normalize_classifier(model)
    classifier = find_classifier(model)
    assert classifier.module is cosine
    assert (classifier.in_features, classifier.num_classes) == (cosine.in_features, C)
    assert_close(cosine.weight, F.normalize(old.weight.flatten(1)))
    model.eval()
    with features_of(model) as view:
        features, logits = view(batch(name))
    assert logits.shape[:2] == (BATCH, C)
    assert logits.abs().max() <= 1 + 1e-6
    assert_close(cosine(3.0 * features), cosine(features))
    if name == "unet":
        assert_close(
            cosine(features), F.conv2d(F.normalize(features), F.normalize(old.weight.flatten(1))[..., None, None])
        )


def test_a_row_of_zeros_gets_a_direction():
    model = build("mlp").double()
    nn.init.zeros_(model.classifier.weight)
    cosine = normalize_classifier(model, scale=20.0)
    assert cosine.weight.dtype is torch.float64
    assert_close(cosine.weight.norm(dim=1), torch.ones(C, dtype=torch.float64))
    assert cosine.scale == 20.0


def test_what_cannot_be_normalised():
    model = build("mlp")
    normalize_classifier(model)
    with pytest.raises(ValueError, match=says("the classifier 'classifier'", "linear layer", "got Cosine", "name=")):
        normalize_classifier(model)
    with pytest.raises(ValueError, match=says("the classifier '0'", "1x1", "got Conv2d with", "(4, 3, 3, 3)")):
        normalize_classifier(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), name="0")
    with pytest.raises(ValueError, match=says("model", "nn.Linear or a 1x1", "got Sequential with neither")):
        normalize_classifier(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    two = TwoHeads()
    with pytest.raises(ValueError, match=says("model", "one classifier", "got 2", "'main'", "'unused'", "name=")):
        normalize_classifier(two)
    assert type(two.unused) is nn.Linear
    with pytest.raises(
        ValueError, match=says("the classifier '1'", "its width", "got LazyLinear", "run the model on a batch")
    ):
        normalize_classifier(nn.Sequential(nn.Linear(4, 6), nn.LazyLinear(3)))
    with pytest.raises(TypeError, match=says("model", "nn.Module", "got function")):
        normalize_classifier(lambda x: x)
    with pytest.raises(ValueError, match=says("scale", "(0, inf]", "got 0")):
        CosineClassifier(4, 3, scale=0.0)
    with pytest.raises(ValueError, match=says("num_classes", "integer", "got 0")):
        CosineClassifier(4, 0)


# ---------------------------------------------------------------------------------------------------------------------
# LDAM-DRW
# ---------------------------------------------------------------------------------------------------------------------


def test_ldam_drw_equals_the_published_training_objective():
    """Cosines, margins and the scale of 30 once; weights from epoch 160 of 200 on."""
    counts, epochs = [500, 60, 20, 5, 1], 200
    model = build_model("mlp", num_classes=C, input_shape=(6,), hidden=(8,)).double()
    cosine = normalize_classifier(model)
    loss = eq.LDAMLoss(counts, weight=Deferred(effective_number(counts), start=0.8), epochs=epochs)
    x, targets = torch.randn(12, 6, dtype=torch.float64), torch.arange(12) % C
    with features_of(model) as view:
        features, logits = view(x)
    margins = torch.tensor(counts, dtype=torch.float64) ** -0.25
    margins = 0.5 * margins / margins.max()
    adjusted = 30.0 * (published(features, cosine.weight) - F.one_hot(targets, C) * margins)
    for epoch, beta in ((0, 0.0), (159, 0.0), (160, 0.9999), (199, 0.9999)):
        loss.set_epoch(epoch)
        weights = (1 - beta) / (1 - beta ** torch.tensor(counts, dtype=torch.float64))
        expected = F.cross_entropy(adjusted, targets, weights / weights.sum() * C)
        assert_close(loss(logits, targets), expected)


def test_the_scale_after_training_gives_the_probabilities_of_the_loss():
    """LDAM without margins is cross-entropy of the scaled cosines."""
    head, features, targets = CosineClassifier(8, C), torch.randn(6, 8), torch.arange(6) % C
    inside = eq.LDAMLoss([5] * C, max_margin=0.0)(head(features), targets)
    head.scale.fill_(30.0)
    assert_close(F.cross_entropy(head(features), targets), inside)


def test_ldam_drw_trains_on_digits():
    data = digits_lt()
    images = torch.tensor(data.train.inputs).float().flatten(1) / 255
    labels = torch.tensor(data.train.labels)
    counts = torch.bincount(labels, minlength=10)
    torch.manual_seed(0)
    model = MLP(in_features=64, num_classes=10, hidden=(32,))
    normalize_classifier(model)
    epochs = 50
    loss = eq.LDAMLoss(counts, weight=Deferred(effective_number(counts)), epochs=epochs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    values = []
    for epoch in range(epochs):
        loss.set_epoch(epoch)
        optimizer.zero_grad()
        value = loss(model(images), labels)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[39] < 0.5 * values[0]  # unweighted
    assert values[-1] < values[40]  # weighted
