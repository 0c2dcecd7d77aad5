"""The classifier of any model: found, replaced, looked behind, and started at a prior."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from equipoise.models import Classifier, features_of, find_classifier, replace_classifier, set_prior_bias
from tests.models.cases import BATCH, MAPS, OPTIONS, C, TwoHeads, batch, build, says

each = pytest.mark.parametrize("name", OPTIONS)


class Net(nn.Module):
    """Parts by keyword, called one after the other in the order that ``run`` says, without a sequence of its own."""

    def __init__(self, run, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.run = run

    def forward(self, x):
        for name in self.run:
            x = self.get_submodule(name)(x)
        return x


def auxiliary():
    """Two heads with as many outputs; which of them counts, only the author knows."""
    return Net(["body", "head"], body=nn.Conv2d(3, 8, 3), head=nn.Conv2d(8, 4, 1), auxiliary=nn.Conv2d(8, 4, 1))


class Scaled(nn.Module):
    """A classifier that is no linear layer."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.rows = nn.Parameter(torch.ones(outputs, inputs))

    def forward(self, x):
        return F.linear(x, self.rows)


# ---------------------------------------------------------------------------------------------------------------------
# Finding
# ---------------------------------------------------------------------------------------------------------------------


@each
def test_found_in_every_model(name):
    model = build(name)
    classifier = find_classifier(model)
    where, module = classifier
    assert where == ("fc" if "resnet" in name else "classifier")
    assert model.get_submodule(where) is module
    assert isinstance(module, nn.Conv2d if name in MAPS else nn.Linear)
    assert classifier.num_classes == C
    assert find_classifier(model, num_classes=C) == classifier
    assert find_classifier(model, where) == classifier


@each
def test_found_in_every_model_without_its_help(name, monkeypatch):
    """The guess agrees with what the models say of themselves."""
    model = build(name)
    expected = find_classifier(model)
    monkeypatch.delattr(type(model), "get_classifier")
    assert find_classifier(model) == expected


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "deeplabv3", "mlp"])
def test_equal_numbers_of_classes_and_channels_are_unambiguous(name):
    width = {"resnet18": 512, "resnet50": 256, "deeplabv3": 16, "mlp": 16}[name]
    model = build(name, num_classes=width)
    assert find_classifier(model).module is model.get_classifier()


HAND_MADE = {
    "sequence": (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Softplus()), "2"),
    "sequence in a sequence": (nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), nn.Linear(3, 3)), "1"),
    "layers of their own": (Net(["a", "b"], a=nn.Linear(4, 8), b=nn.Linear(8, 3)), "b"),
    "deep inside": (Net(["a", "b"], a=nn.Flatten(), b=Net(["c", "d"], c=nn.Identity(), d=nn.Linear(4, 3))), "b.d"),
    "fully convolutional": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 3, 1), nn.AdaptiveAvgPool2d(1)), "1"),
    "linear inside, convolution last": (
        Net(["a", "b"], a=nn.Sequential(nn.Flatten(2), nn.Linear(9, 3)), b=nn.Conv1d(3, 3, 1)),
        "b",
    ),
    "pointwise inside, linear last": (
        Net(["a", "b"], a=nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten()), b=nn.Linear(4, 4)),
        "b",
    ),
    "convolution before a norm": (
        Net(["a", "b", "c"], a=nn.Conv2d(3, 4, 1, bias=False), b=nn.BatchNorm2d(4), c=nn.Conv2d(4, 4, 1)),
        "c",
    ),
    "no pointwise convolutions behind it": (
        Net(["a"], a=nn.Conv2d(3, 4, 1), b=nn.Conv2d(4, 4, 1, stride=2), c=nn.Conv2d(4, 4, 1, groups=4)),
        "a",
    ),
    "attention behind it": (Net(["head"], head=nn.Linear(4, 4), attention=nn.MultiheadAttention(4, 2)), "head"),
    "layers of one width side by side": (
        Net(["a", "c"], a=nn.Linear(8, 6), b=nn.Linear(8, 6), c=nn.Linear(6, 8), d=nn.Linear(8, 3)),
        "d",
    ),
    "recurrent between": (Net(["a"], a=nn.Linear(8, 6), b=nn.LSTM(6, 8), c=nn.Linear(8, 3)), "c"),
    "outputs that are split in a block": (
        Net(["a", "b"], a=Net(["c"], c=nn.Linear(4, 12), d=nn.Linear(4, 4)), b=nn.Linear(4, 3)),
        "b",
    ),
    "pooling by attention": (Net(["score", "head"], score=nn.Linear(4, 1), head=nn.Linear(4, 3)), "head"),
    "a layer alone": (nn.Linear(4, 3), ""),
    "volumes": (nn.Sequential(nn.Conv3d(1, 4, 3), nn.Conv3d(4, 3, 1)), "1"),
}


@pytest.mark.parametrize("case", HAND_MADE)
def test_found_in_other_nets(case):
    model, where = HAND_MADE[case]
    classifier = find_classifier(model)
    assert classifier.name == where
    assert classifier.module is model.get_submodule(where)


def test_two_that_could_be_it_are_listed():
    model = auxiliary()
    message = says("model", "one classifier", "got 2", "'head' (Conv2d, 4 outputs)", "'auxiliary' (Conv2d", "name=")
    with pytest.raises(ValueError, match=message):
        find_classifier(model)
    assert find_classifier(model, "head") == Classifier("head", model.head)
    assert find_classifier(model, name="auxiliary").module is model.auxiliary
    with pytest.raises(ValueError, match=says("model", "one classifier", "got 2")):
        replace_classifier(model, nn.Conv2d(8, 9, 1))
    with pytest.raises(ValueError, match=says("model", "one classifier", "got 2")):
        features_of(model)


def test_heads_of_other_widths_could_be_it_as_well():
    """Both see the same features, and nothing in the model sees what they make of them."""
    message = says("model", "one classifier", "got 2", "'main' (Linear, 5 outputs), 'unused' (Linear, 7", "name=")
    with pytest.raises(ValueError, match=message):
        find_classifier(TwoHeads())
    assert find_classifier(TwoHeads(), num_classes=C).name == "main"
    assert find_classifier(TwoHeads(features=8)).name == "unused"  # of other features: the guess is the last one


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.LazyLinear(3)

    def forward(self, x):
        return self.head(self.body(x))


def test_a_lazy_classifier_needs_a_batch():
    message = says("the classifier 'head'", "its width", "got LazyLinear", "run the model on a batch first")
    model = Lazy()
    classifier = find_classifier(model)
    assert classifier.num_classes == 3
    with pytest.raises(ValueError, match=message):
        classifier.in_features  # noqa: B018
    with pytest.raises(ValueError, match=message):
        set_prior_bias(model)
    model(torch.zeros(1, 4))
    assert find_classifier(model).in_features == 6


@pytest.mark.parametrize("wrong", [lambda x: x, "resnet32", None, nn.Linear])
def test_model_must_be_a_module(wrong):
    with pytest.raises(TypeError, match=says("model", "nn.Module", "pass the model itself")):
        find_classifier(wrong)


def test_the_number_of_classes_decides():
    model = Net(["a", "b"], a=nn.Linear(4, 3), b=nn.Linear(3, 8))
    assert find_classifier(model).name == "b"
    assert find_classifier(model, num_classes=3).name == "a"
    with pytest.raises(ValueError, match=says("model", "with 5 outputs", "got Net with a (3), b (8)", "name=")):
        find_classifier(model, num_classes=5)


def test_nothing_to_find():
    with pytest.raises(ValueError, match=says("model", "nn.Linear or a 1x1", "got Sequential with neither", "name=")):
        find_classifier(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))


def test_a_name_that_is_not_there():
    with pytest.raises(ValueError, match=says("name", "inside CifarResNet", "got 'head'", "fc")):
        find_classifier(build("resnet32"), "head")


def test_models_that_say_what_their_classifier_is():
    model = auxiliary()
    model.get_classifier = lambda: model.head
    assert find_classifier(model).name == "head"
    for nothing in (nn.Identity(), None):
        model.get_classifier = lambda nothing=nothing: nothing
        with pytest.raises(ValueError, match=says("model", "got 2")):
            find_classifier(model)


def test_widths_of_a_classifier():
    classifier = find_classifier(nn.Sequential(nn.Conv2d(7, 3, 1)))
    assert (classifier.in_features, classifier.num_classes) == (7, 3)
    scaled = find_classifier(Net(["head"], head=Scaled(2, 3)), "head")
    with pytest.raises(TypeError, match=says("the classifier 'head'", ".in_features", "got Scaled")):
        scaled.in_features  # noqa: B018
    scaled.module.in_features = 2
    assert scaled.in_features == 2


# ---------------------------------------------------------------------------------------------------------------------
# Replacing
# ---------------------------------------------------------------------------------------------------------------------


@each
def test_replacing_keeps_everything_else(name):
    model, untouched = build(name), build(name)
    where, old = find_classifier(model)
    others = {key: part for key, part in model.named_modules() if part is not old}
    width = find_classifier(model).in_features
    new = nn.Conv2d(width, 2, 1) if name in MAPS else nn.Linear(width, 2)
    assert replace_classifier(model, new) is old
    assert find_classifier(model) == (where, new)
    assert {key: part for key, part in model.named_modules() if part is not new} == others
    state, before = model.state_dict(), untouched.state_dict()
    assert list(state) == list(before)
    for key, value in state.items():
        assert key.startswith(where) or torch.equal(value, before[key])
    assert model.eval()(batch(name)).shape[:2] == (BATCH, 2)
    # and back again
    assert replace_classifier(model, old) is new
    assert torch.equal(model(batch(name)), untouched.eval()(batch(name)))


def test_a_replaced_non_linear_classifier_is_found():
    model = Net(["a", "b"], a=nn.Linear(4, 3), b=nn.Linear(3, 3))
    scaled = Scaled(3, 3)
    replace_classifier(model, scaled, name="b")
    assert find_classifier(model) == ("b", scaled)
    assert find_classifier(copy.deepcopy(model)).name == "b"
    assert find_classifier(model, "a").module is model.a
    del model.b
    assert find_classifier(model).name == "a"


def test_replacing_inside_sequences_lists_and_dicts():
    for model, where in (
        (nn.Sequential(nn.ReLU(), nn.Linear(4, 3)), "1"),
        (Net([], parts=nn.ModuleList([nn.ReLU(), nn.Linear(4, 3)])), "parts.1"),
        (Net([], parts=nn.ModuleDict({"head": nn.Linear(4, 3), "act": nn.ReLU()})), "parts.head"),
    ):
        order = [key for key, _ in model.named_modules()]
        new = nn.Linear(4, 9)
        replace_classifier(model, new)
        assert model.get_submodule(where) is new
        assert [key for key, _ in model.named_modules()] == order


def test_a_layer_with_two_names_is_replaced_under_both():
    head = nn.Linear(4, 3)
    model = Net(["fc"], fc=head, head=head)
    new = nn.Linear(4, 2)
    replace_classifier(model, new)
    assert model.fc is new
    assert model.head is new


@pytest.mark.parametrize("training", [True, False])
def test_the_new_module_takes_over_the_mode(training):
    model = build("mlp").train(training)
    new = nn.Sequential(nn.Dropout(), nn.Linear(16, 2)).train(not training)
    replace_classifier(model, new)
    assert all(part.training is training for part in model.modules())


def test_what_cannot_be_replaced():
    with pytest.raises(TypeError, match=says("module", "nn.Module", "got function", "nn.Linear(D, C)")):
        replace_classifier(build("mlp"), lambda x: x)
    with pytest.raises(ValueError, match=says("model", "as a submodule", "got Linear", "use the new module")):
        replace_classifier(nn.Linear(3, 2), nn.Linear(3, 4))


# ---------------------------------------------------------------------------------------------------------------------
# Features
# ---------------------------------------------------------------------------------------------------------------------


@each
def test_features_are_what_the_classifier_sees(name):
    model, x = build(name).eval(), batch(name)
    expected = model(x)
    with features_of(model) as view:
        features, logits = view(x)
    assert torch.equal(logits, expected)
    classifier = find_classifier(model)
    assert features.shape[:2] == (BATCH, classifier.in_features)
    again = classifier.module(features)
    if name in MAPS:
        again = F.interpolate(again, size=x.shape[-2:], mode="bilinear")
    assert_close(again, logits)


def test_gradients_flow_through_features():
    model = build("mlp")
    with features_of(model) as view:
        features, logits = view(batch("mlp"))
    features.sum().backward(retain_graph=True)
    first = model.body[0].weight.grad.clone()
    assert first.count_nonzero() > 0
    assert model.classifier.weight.grad is None
    logits.sum().backward()
    assert model.classifier.weight.grad.count_nonzero() > 0
    assert not torch.equal(model.body[0].weight.grad, first)


def test_a_view_shares_the_model_and_leaves_no_trace():
    model, x = build("mlp"), batch("mlp")
    view = features_of(model)
    assert [id(p) for p in view.parameters()] == [id(p) for p in model.parameters()]
    model(x)
    assert not view._seen, "the model by itself is not watched"
    view(x)
    assert not view._seen
    assert len(model.classifier._forward_pre_hooks) == 1
    view.close()
    assert not model.classifier._forward_pre_hooks
    with pytest.raises(RuntimeError, match=says("the classifier 'classifier'", "once", "got 0 calls", "name=")):
        view(x)


def test_views_are_copied_and_stand_side_by_side():
    model, x = build("mlp").eval(), batch("mlp")
    with features_of(model) as one, features_of(model, "body.0") as other:
        assert_close(other(x).features, x.flatten(1))
        copied = copy.deepcopy(one)
        nn.init.zeros_(model.body[0].weight)
        assert one(x).features.count_nonzero() == 0
        assert copied(x).features.count_nonzero() > 0


def test_a_view_compiles():
    torch._dynamo.reset()
    model, x = build("mlp").eval(), batch("mlp")
    with features_of(model) as view:
        expected = view(x)
        actual = torch.compile(view, fullgraph=True, backend="eager")(x)
    assert_close(actual.features, expected.features)
    assert_close(actual.logits, expected.logits)


def test_a_classifier_that_is_called_twice_or_never():
    twice = Net(["a", "a"], a=nn.Linear(3, 3))
    with features_of(twice) as view, pytest.raises(RuntimeError, match=says("the classifier 'a'", "once", "got 2")):
        view(torch.zeros(1, 3))
    replaced = build("mlp")
    with features_of(replaced) as view:
        replace_classifier(replaced, nn.Linear(16, 2))
        with pytest.raises(RuntimeError, match=says("the classifier 'classifier'", "got 0 calls")):
            view(batch("mlp"))


def test_a_failing_forward_pass_stops_the_view_from_looking():
    model = build("mlp")
    with features_of(model) as view:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            view(torch.zeros(2, 5))
        model(batch("mlp"))
        assert not view._seen
        assert view(batch("mlp")).features.shape == (BATCH, 16)


# ---------------------------------------------------------------------------------------------------------------------
# Prior
# ---------------------------------------------------------------------------------------------------------------------


@each
def test_prior_of_one_class_in_many(name):
    model = build(name)
    weight = model.get_classifier().weight.clone()
    set_prior_bias(model)
    bias = model.get_classifier().bias
    assert bias.requires_grad
    assert bias.tolist() == pytest.approx([-math.log(C - 1)] * C)
    assert torch.equal(model.get_classifier().weight, weight)


def test_priors_of_labels():
    model = build("mlp")
    frequencies = torch.tensor([0.5, 0.1, 0.01, 0.001, 0.9])
    set_prior_bias(model, frequencies)
    assert_close(model.classifier.bias.sigmoid(), frequencies)
    set_prior_bias(model, frequencies.tolist())
    assert_close(model.classifier.bias.sigmoid(), frequencies)
    set_prior_bias(model, 0.01)  # RetinaNet: -log((1 - 0.01) / 0.01)
    assert model.classifier.bias.tolist() == pytest.approx([-math.log(99)] * C)
    set_prior_bias(auxiliary(), name="head")


@pytest.mark.parametrize(
    ("prior", "parts"),
    [
        (0.0, ("inside (0, 1)", "got 0.0", "(counts + 1) / (num_samples + 2)")),
        (1.0, ("inside (0, 1)", "got 1.0")),
        (math.nan, ("inside (0, 1)", "got nan")),
        ([0.1, 0.2, 0.0, 0.1, 0.1], ("inside (0, 1)", "0.0", "(counts + 1)")),
        ([0.1, 0.2], ("one entry for each of the 5 classes", "got 2 entries")),
        ([[0.1] * 5], ("shape (C,)", "got shape (1, 5)")),
    ],
)
def test_priors_that_are_none(prior, parts):
    model = build("mlp")
    before = model.classifier.bias.clone()
    with pytest.raises(ValueError, match=says("prior", *parts)):
        set_prior_bias(model, prior)
    assert torch.equal(model.classifier.bias, before)


def test_a_prior_needs_a_bias_and_two_classes():
    with pytest.raises(ValueError, match=says("the classifier '0'", "a bias", "got Linear without", "bias=True")):
        set_prior_bias(nn.Sequential(nn.Linear(3, 2, bias=False)))
    with pytest.raises(ValueError, match=says("prior", "inside (0, 1)", "got 1.0")):
        set_prior_bias(nn.Linear(3, 1))
