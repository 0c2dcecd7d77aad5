"""The Simple Decoupled Network: which gradient goes where, what is shared, and what merging gives back."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import equipoise as eq
from equipoise.data import digits_lt
from equipoise.heads import (
    CosineClassifier,
    DecoupledHead,
    DecoupledLogits,
    DecoupledLoss,
    DecoupledModel,
    bilateral,
    decouple,
    normalize_classifier,
)
from equipoise.models import MLP, features_of, find_classifier, replace_classifier
from equipoise.schedules import Linear
from tests.models.cases import BATCH, MAPS, OPTIONS, C, TwoHeads, batch, build, says
from tests.processes import leave, on_two_processes

each = pytest.mark.parametrize("name", [name for name in OPTIONS if name != "resnet50"])
COUNTS = [50, 20, 10, 5, 1]


def targets_of(logits):
    """Every class in turn."""
    shape = (logits.shape[0], *logits.shape[2:])
    return torch.arange(math.prod(shape)).reshape(shape) % C


def gradients(model):
    return {key: None if p.grad is None else p.grad.clone() for key, p in model.named_parameters()}


def shake(head):
    """Make the two heads differ."""
    with torch.no_grad():
        head.classifier.weight.add_(torch.randn_like(head.classifier.weight))


class Trunk(nn.Module):
    """A body, a classifier, and something behind it."""

    def __init__(self, classifier, behind):
        super().__init__()
        self.body, self.classifier, self.behind = nn.Linear(6, 4), classifier, behind

    def forward(self, x):
        return self.behind(self.classifier(self.body(x)))


# ---------------------------------------------------------------------------------------------------------------------
# Definitions
# ---------------------------------------------------------------------------------------------------------------------


@each
def test_the_second_head_never_reaches_the_features(name):
    model = decouple(build(name))
    shake(model.head)
    both = model(batch(name))
    eq.ClassBalancedLoss(COUNTS)(both.classifier, targets_of(both.classifier)).backward()
    actual = gradients(model)
    second = f"model.{model.name}.classifier."
    for key, grad in actual.items():
        if key.startswith(second):
            assert grad.count_nonzero() > 0, key
        else:  # joined with the first head's logits on the way, so it may be zero instead of None
            assert grad is None or grad.count_nonzero() == 0, key


@each
def test_the_first_head_trains_the_features_as_the_plain_model_does(name):
    plain, model = build(name), decouple(build(name))
    loss = eq.CrossEntropyLoss()
    x = batch(name)
    torch.manual_seed(7)  # of dropout
    expected = plain(x)
    targets = targets_of(expected)
    loss(expected, targets).backward()
    torch.manual_seed(7)
    both = model(x)
    assert_close(both.feature, expected)
    # with the loss of the other head beside it: the features must not see it
    DecoupledLoss(loss, eq.ClassBalancedLoss(COUNTS))(both, targets).backward()
    where = find_classifier(plain).name
    actual = gradients(model)
    for key, grad in gradients(plain).items():
        mine = key.replace(where + ".", where + ".feature.", 1) if key.startswith(where + ".") else key
        assert_close(actual["model." + mine], grad)


@each
def test_merged_equals_the_second_head_bit_for_bit(name):
    model = decouple(build(name))
    shake(model.head)
    head, x = model.head, batch(name)
    model.eval()
    expected = model(x)
    with features_of(model) as view:
        features, logits = view(x)
    assert torch.equal(logits, expected)
    if name not in MAPS:
        assert torch.equal(head.classifier(features), expected)
        assert not torch.equal(head.feature(features), expected)
    plain = model.merge()
    assert torch.equal(plain(x), expected)
    fresh = build(name)
    assert type(plain) is type(fresh)
    assert list(plain.state_dict()) == list(fresh.state_dict())
    fresh.load_state_dict(plain.state_dict())
    assert torch.equal(fresh.eval()(x), expected)


@each
def test_both_heads_answer_in_training(name):
    """In training the logits of the second head are those that it gives at inference."""
    model, x = decouple(build(name)), batch(name)
    shake(model.head)
    model.eval()
    expected = model(x)
    model.head.train()  # batch norm and dropout stay in evaluation mode
    both = model(x)
    assert isinstance(both, DecoupledLogits)
    assert both.feature.shape == both.classifier.shape == expected.shape
    assert_close(both.classifier, expected)
    assert not torch.allclose(both.feature, expected)
    model.head.eval()
    assert torch.equal(model(x), expected)


@each
def test_nothing_but_the_classifier_is_copied(name):
    plain = build(name)
    before = {id(p) for p in plain.parameters()}
    storages = {p.data_ptr() for p in plain.parameters()}
    layer = find_classifier(plain).module
    model = decouple(plain)
    assert model.model is plain
    assert model.head.feature is layer
    new = [p for p in model.parameters() if id(p) not in before]
    assert [id(p) for p in new] == [id(p) for p in model.head.classifier.parameters()]
    assert sum(p.numel() for p in new) == sum(p.numel() for p in layer.parameters())
    assert {p.data_ptr() for p in plain.parameters()} >= storages
    assert model.merge() is plain
    assert {id(p) for p in plain.parameters()} & before == before - {id(p) for p in layer.parameters()}


def test_hooks_of_the_classifier_do_not_bring_the_model_along():
    plain = build("mlp")
    with features_of(plain):
        model = decouple(plain)
    (hook,) = model.head.classifier._forward_pre_hooks.values()
    assert hook.__self__.model is plain
    assert model(batch("mlp")).feature.shape == (BATCH, C)


def test_at_first_the_model_answers_as_before():
    plain = build("resnet32").eval()
    expected = plain(batch("resnet32"))
    assert torch.equal(decouple(plain)(batch("resnet32")), expected)


def test_a_frozen_model_gets_a_head_that_learns():
    model = decouple(build("mlp").requires_grad_(False))
    trained = [key for key, p in model.named_parameters() if p.requires_grad]
    assert trained == ["model.classifier.classifier.weight", "model.classifier.classifier.bias"]


def test_gradients_of_the_input_flow_in_evaluation():
    model, x = decouple(build("mlp")).eval(), batch("mlp").requires_grad_()
    model(x).sum().backward()
    assert x.grad.count_nonzero() > 0


# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classifier", "behind", "shape"),
    [
        (nn.Linear(4, 3), nn.Flatten(1), (5, 6)),
        (nn.Linear(4, 3), nn.Unflatten(1, (3, 1)), (5, 6)),  # knows the number of classes
        (nn.Linear(4, 3), nn.Identity(), (5, 7, 6)),  # a token in each row
        (nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3)), nn.Identity(), (5, 6)),
    ],
)
def test_layers_after_the_classifier(classifier, behind, shape):
    model = decouple(Trunk(classifier, behind))
    shake(model.head)
    x = torch.randn(shape)
    both, expected = model(x), model.eval()(x)
    assert_close(both.classifier, expected)
    assert both.feature.shape == expected.shape


def test_several_labels():
    model = decouple(build("mlp"))
    loss = DecoupledLoss(eq.AsymmetricLoss(), eq.BinaryFocalLoss())
    both = model(batch("mlp"))
    targets = (torch.arange(BATCH * C).reshape(BATCH, C) % 3 == 0).float()
    value = loss(both, targets)
    assert_close(value, eq.AsymmetricLoss()(both.feature, targets) + eq.BinaryFocalLoss()(both.classifier, targets))


def test_a_named_classifier_and_a_head_of_ones_own():
    net = Trunk(nn.Linear(4, 3), nn.Identity())
    assert decouple(copy.deepcopy(net), "body").head.in_features == 6
    own = CosineClassifier(4, 3)
    model = decouple(net, classifier=own)
    assert model.head.classifier is own
    assert model(torch.randn(2, 6)).classifier.abs().max() <= 1
    assert model.merge().classifier is own


def test_cosine_classifiers_are_decoupled_too():
    plain = build("unet")
    normalize_classifier(plain)
    model = decouple(plain)
    assert isinstance(model.head.classifier, CosineClassifier)
    both = model(batch("unet"))
    loss = DecoupledLoss(eq.LDAMLoss(COUNTS), eq.LDAMLoss(COUNTS))
    loss(both, targets_of(both.feature)).backward()
    assert model.head.classifier.weight.grad.count_nonzero() > 0


def test_found_by_its_heads():
    model = decouple(build("resnet32"))
    classifier = find_classifier(model)
    assert (classifier.name, classifier.module) == ("model.fc", model.head)
    assert (classifier.in_features, classifier.num_classes) == (64, C)
    assert find_classifier(model.model) == ("fc", model.head)


def test_copies_and_saved_states():
    model = decouple(build("mlp"))
    other = copy.deepcopy(model)
    shake(model.head)
    x = batch("mlp")
    assert not torch.equal(model.eval()(x), other.eval()(x))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x), other(x))
    # merging a copy leaves the original
    plain = copy.deepcopy(model).merge()
    assert isinstance(model.head, DecoupledHead)
    assert torch.equal(plain(x), model(x))


def test_compiled():
    torch._dynamo.reset()
    model, x = decouple(build("mlp")), batch("mlp")
    shake(model.head)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(compiled(x), model(x))
    model.eval()
    assert_close(compiled(x), model(x))


def test_half_precision():
    model = decouple(build("resnet32"))
    loss = DecoupledLoss.from_counts(COUNTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        both = model(batch("resnet32"))
        value = loss(both, targets_of(both.feature))
    assert both.classifier.dtype is torch.bfloat16
    assert value.dtype is torch.float32
    value.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


# ---------------------------------------------------------------------------------------------------------------------
# Loss
# ---------------------------------------------------------------------------------------------------------------------


def test_losses_of_the_paper():
    logits = DecoupledLogits(*torch.randn(2, 20, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    targets = torch.arange(20) % C
    targets[0] = -100
    loss = DecoupledLoss.from_counts(COUNTS)
    recall, balanced = eq.RecallLoss(C, momentum=0.1), eq.ClassBalancedLoss(COUNTS, beta=0.9999)
    for _ in range(3):
        assert_close(loss(logits, targets), recall(logits.feature, targets) + balanced(logits.classifier, targets))
    assert loss.state_dict().keys() == {f"feature.{key}" for key in recall.state_dict()}
    # a recall that has been counted by hand, for the labels that are seen in every batch
    seen = logits.feature.argmax(1) == targets
    expected = torch.stack([seen[(targets == c)].double().mean() for c in range(C)])
    (actual,) = [value for key, value in loss.state_dict().items() if key.endswith(".recall")]
    assert_close(actual, expected)


def test_options_reach_both_losses():
    loss = DecoupledLoss.from_counts(COUNTS, momentum=0.5, beta=0.9, ignore_index=255)
    logits = DecoupledLogits(torch.randn(4, C), torch.randn(4, C))
    targets = torch.tensor([0, 1, 255, 2])
    expected = eq.RecallLoss(C, momentum=0.5, ignore_index=255)(logits.feature, targets)
    expected += eq.ClassBalancedLoss(COUNTS, beta=0.9, ignore_index=255)(logits.classifier, targets)
    assert_close(loss(logits, targets), expected)
    assert_close(loss(tuple(logits), targets), expected)


@pytest.mark.parametrize("sync", [True, False])
def test_both_losses_synchronise_or_none(sync):
    loss = DecoupledLoss.from_counts(COUNTS, sync=sync)
    assert loss.feature.sync is loss.classifier.sync is sync
    loss = DecoupledLoss.from_counts(COUNTS)
    assert loss.feature.sync is loss.classifier.sync is True


def test_logits_of_one_head_are_judged_by_its_loss():
    loss = DecoupledLoss.from_counts(COUNTS)
    logits, targets = torch.randn(4, C), torch.tensor([0, 1, 2, 4])
    expected = eq.ClassBalancedLoss(COUNTS)(logits, targets)
    assert_close(loss(logits, targets), expected)
    assert_close(loss.eval()(logits.requires_grad_(), targets), expected)


def test_schedules_of_both_losses_move():
    loss = DecoupledLoss(eq.FocalLoss(Linear(0.0, 4.0), epochs=4), nn.CrossEntropyLoss())
    logits, targets = DecoupledLogits(torch.randn(4, C), torch.randn(4, C)), torch.tensor([0, 1, 2, 4])
    plain = nn.CrossEntropyLoss()(logits.classifier, targets)
    loss.set_epoch(2)
    assert_close(loss(logits, targets), plain + eq.FocalLoss(2.0)(logits.feature, targets))
    loss.set_progress(0.75)
    assert_close(loss(logits, targets), plain + eq.FocalLoss(3.0)(logits.feature, targets))


@pytest.mark.parametrize("feature", ["recall", "cross-entropy"])
def test_trains_on_digits(feature):
    """Both heads learn, SDN and its ablation SDN-CE."""
    data = digits_lt()
    images = torch.tensor(data.train.inputs).float().flatten(1) / 255
    labels = torch.tensor(data.train.labels)
    counts = torch.bincount(labels, minlength=10)
    torch.manual_seed(0)
    model = decouple(MLP(in_features=64, num_classes=10, hidden=(32,)))
    balanced = eq.ClassBalancedLoss(counts)
    loss = (
        DecoupledLoss.from_counts(counts)
        if feature == "recall"
        else DecoupledLoss(eq.CrossEntropyLoss(), eq.ClassBalancedLoss(counts))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = balanced(model.eval()(images), labels).item()
    model.train()
    for _ in range(60):
        optimizer.zero_grad()
        loss(model(images), labels).backward()
        optimizer.step()
    plain = model.eval().merge()
    assert balanced(plain(images), labels).item() < 0.5 * first


# ---------------------------------------------------------------------------------------------------------------------
# Two processes
# ---------------------------------------------------------------------------------------------------------------------


def trained(model, loss, shards):
    """State after two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for x, targets in shards:
        optimizer.zero_grad()
        loss(model(x), targets).backward()
        optimizer.step()
    return {key.removeprefix("module."): value for key, value in (model.state_dict() | loss.state_dict()).items()}


def steps(start, stop):
    draw = torch.Generator().manual_seed(5)
    for _ in range(2):
        x, targets = torch.randn(12, 6, generator=draw, dtype=torch.float64), torch.arange(12) % 3
        yield x[start:stop], targets[start:stop]


def fresh():
    torch.manual_seed(0)
    return decouple(Trunk(nn.Linear(4, 3), nn.Identity()).double()), DecoupledLoss.from_counts([9, 3, 1])


def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model, loss = fresh()
    actual = trained(DistributedDataParallel(model), loss, steps(*((0, 8), (8, 12))[rank]))
    torch.save(actual, f"{folder}/{rank}.pt")
    leave()


def test_two_processes_train_as_one(tmp_path):
    expected = trained(*fresh(), steps(0, 12))
    for actual in on_two_processes(work, tmp_path, patience=120):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(actual[key], value, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes
# ---------------------------------------------------------------------------------------------------------------------


def test_models_without_a_linear_layer():
    with pytest.raises(ValueError, match=says("model", "nn.Linear or a 1x1", "got Sequential with neither", "name=")):
        decouple(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    with pytest.raises(
        TypeError, match=says("the classifier '1'", "from features to logits", "got ReLU", "classifier: 0")
    ):
        decouple(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), "1")
    with pytest.raises(
        ValueError, match=says("the classifier '1'", "its width", "got LazyLinear", "run the model on a batch")
    ):
        decouple(nn.Sequential(nn.Linear(3, 4), nn.LazyLinear(2)))
    with pytest.raises(TypeError, match=says("model", "nn.Module", "got function", "the model itself")):
        decouple(lambda x: x)
    with pytest.raises(ValueError, match=says("model", "as a submodule", "got Linear", "use the new module")):
        decouple(nn.Linear(3, 2))


def test_a_linear_layer_that_is_not_the_last():
    """A guess that went wrong is seen in the first step, before anything was trained."""
    model = decouple(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 3)))
    with pytest.raises(ValueError, match=says("model", "the 8 logits", "'0'", "got shape (4, 4, 3, 3)", "name=")):
        model(torch.randn(2, 3, 5, 5))


def test_a_model_that_insists_on_its_batch():
    class Insists(Trunk):
        def forward(self, x):
            return super().forward(x).reshape(len(x), -1)

    model = decouple(Insists(nn.Linear(4, 3), nn.Identity()))
    with pytest.raises(ValueError, match=says("model", "two rows per sample", "got shape (5, 6)", "do not fix")):
        model(torch.randn(5, 6))


def test_a_model_that_returns_no_tensor():
    class Named(Trunk):
        def forward(self, x):
            return {"logits": super().forward(x)}

    with pytest.raises(TypeError, match=says("model", "return logits", "got dict", "wrap it")):
        decouple(Named(nn.Linear(4, 3), nn.Identity()))(torch.randn(5, 6))


def test_classes_that_do_not_match():
    plain = build("mlp")
    with pytest.raises(ValueError, match=says("classifier", "16 features and 5 classes", "got 16 features and 7")):
        decouple(plain, classifier=nn.Linear(16, 7))
    assert isinstance(plain.classifier, nn.Linear), "a failed attempt leaves the model as it was"
    with pytest.raises(ValueError, match=says("classifier", "16 features", "got 8 features")):
        DecoupledHead(nn.Linear(16, 5), nn.Linear(8, 5))
    both = decouple(plain)(batch("mlp"))
    for loss, message in (
        (DecoupledLoss.from_counts([3, 2, 1]), r"num_classes=3, and logits of 5; change"),
        (DecoupledLoss(eq.CrossEntropyLoss(), eq.ClassBalancedLoss([3, 2, 1])), r"5 classes.*got 3 entries; check"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(both, torch.tensor([0, 1, 2, 0]))


def test_decoupled_twice_or_too_late():
    model = decouple(build("mlp"))
    with pytest.raises(ValueError, match=says("model", "one head", "got DecoupledModel", "merge()")):
        decouple(model)
    with pytest.raises(ValueError, match=says("model", "one head", "got MLP", "merge()")):
        decouple(model.model)
    model.merge()
    for late in (lambda: model(batch("mlp")), model.merge):
        with pytest.raises(RuntimeError, match=says("the classifier 'classifier'", "DecoupledHead", "got Linear")):
            late()
    again = decouple(model.model)
    assert isinstance(again, DecoupledModel)
    replace_classifier(again.model, nn.Linear(16, 2))
    with pytest.raises(RuntimeError, match="DecoupledHead"):
        again(batch("mlp"))


def test_a_layer_that_the_model_never_uses():
    model = TwoHeads()
    with pytest.raises(ValueError, match=says("model", "one classifier", "got 2")):
        decouple(model)
    wrong = decouple(model, "unused")
    with pytest.raises(ValueError, match=says("model", "the 7 logits", "'unused'", "got shape (4, 5)", "name=")):
        wrong(torch.randn(4, 12))
    with pytest.raises(
        ValueError, match=says("model", "one head", "'unused' is decoupled already", "build the model again")
    ):
        decouple(model, "main")
    wrong.merge()
    assert decouple(model, "main")(torch.randn(4, 12)).classifier.shape == (4, C)


def test_branches_are_not_decoupled():
    with pytest.raises(ValueError, match=says("model", "one head", "two branches already", "build the model again")):
        decouple(bilateral(build("mlp"), epochs=2).model)


@pytest.mark.parametrize("wrong", ["ce", None, eq.CrossEntropyLoss])
def test_invalid_losses_raise(wrong):
    with pytest.raises(TypeError, match=says("feature", "called with logits and targets", "CrossEntropyLoss()")):
        DecoupledLoss(wrong, eq.CrossEntropyLoss())
    with pytest.raises(TypeError, match=says("classifier", "called with logits and targets")):
        DecoupledLoss(eq.CrossEntropyLoss(), wrong)
    DecoupledLoss(F.cross_entropy, nn.CrossEntropyLoss())


def test_a_distributed_model(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match=says("model", "DistributedDataParallel yet", "got one", "decouple")):
            decouple(DistributedDataParallel(build("mlp")))
    finally:
        dist.destroy_process_group()


def test_a_plain_model_is_not_trained_by_mistake():
    loss = DecoupledLoss.from_counts(COUNTS)
    with pytest.raises(TypeError, match=says("logits", "both heads in training", "got one tensor", "decouple(model)")):
        loss(build("mlp")(batch("mlp")), torch.tensor([0, 1, 2, 0]))
