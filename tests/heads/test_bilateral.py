"""The bilateral-branch network: its mixing, its branches, and any model."""

import copy

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from equipoise.heads import BranchMixing, bilateral, decouple, find_last_block, normalize_classifier
from equipoise.heads.bilateral import BilateralModel
from equipoise.models import MLP, find_classifier, replace_classifier
from equipoise.schedules import Constant, Linear
from tests.golden.cases import load
from tests.models.cases import OPTIONS, C, TwoHeads, batch, build, pooled, says
from tests.processes import leave, on_two_processes

MODELS = tuple(name for name in OPTIONS if name != "linear")
PUBLISHED = load("bbn_schedule")


def tiny(width=6, **options):
    torch.manual_seed(0)
    return bilateral(MLP(4, 3, hidden=(width, width)), **{"epochs": 10, **options})


def cosine():
    model = MLP(4, 3)
    normalize_classifier(model)
    return model


def train_step(net, *batches, loss=F.cross_entropy):
    (inputs, labels), (others, their_labels) = batches
    logits = net(inputs, others)
    total = getattr(net, "module", net).mix(loss(logits, labels), loss(logits, their_labels))
    total.backward()
    return logits, total


# ---------------------------------------------------------------------------------------------------------------------
# Mixing
# ---------------------------------------------------------------------------------------------------------------------


class Given(nn.Module):
    """Returns its inputs, so that the mixing can be seen alone."""

    def __init__(self, width, classes):
        super().__init__()
        self.block = nn.Identity()
        self.classifier = nn.Linear(width, classes, bias=False)

    def forward(self, x):
        return self.classifier(self.block(x))


@pytest.mark.parametrize("case", PUBLISHED, ids=str)
def test_preset_equals_the_published_code(case):
    epoch, epochs = case.params["epoch"], case.params["max_epoch"]
    features_a, features_b, weight = (torch.tensor(case.arrays[key]) for key in ("feature_a", "feature_b", "weight"))
    net = bilateral(Given(3, 5).double(), epochs=epochs, preset="published", block="block")
    net.get_classifier().linear.load_state_dict({"weight": weight})
    net.set_epoch(epoch - case.params["epoch_base"])
    assert float(net.share) == pytest.approx(case.outputs["l"], abs=1e-12)
    logits = net(features_a, features_b)
    np.testing.assert_allclose(logits.detach().numpy(), case.outputs["logits"], rtol=1e-10, atol=1e-10)
    losses = [F.cross_entropy(logits, torch.tensor(case.arrays[key])) for key in ("label_a", "label_b")]
    assert float(net.mix(*losses).detach()) == pytest.approx(case.outputs["loss"], abs=1e-10)


@pytest.mark.parametrize("epochs", [2, 90, 180, 200])
def test_the_default_ends_at_0(epochs):
    net = tiny(epochs=epochs)
    shares = []
    for epoch in range(epochs):
        net.set_epoch(epoch)
        shares.append(float(net.share))
    assert shares[0] == 1.0
    assert shares[-1] == 0.0
    assert shares == sorted(shares, reverse=True)
    net.set_progress(0.5)
    assert float(net.share) == 0.75


def test_one_epoch_is_the_start():
    net = tiny(epochs=1)
    net.set_epoch(0)
    assert float(net.share) == 1.0


def test_any_schedule_mixes():
    net = tiny(mixing=Linear(1.0, 0.0))
    net.set_epoch(5)
    assert float(net.share) == 0.5
    assert BranchMixing() == BranchMixing(end="last_epoch") != BranchMixing(end="published")


def test_evaluation_mixes_half_and_half():
    net = tiny()
    inputs = torch.randn(5, 4)
    for epoch in (0, 9):
        net.set_epoch(epoch)
        outputs = net.eval()(inputs)
        first, second = (branch_features(net, inputs, branch) for branch in (0, 1))
        linear = net.get_classifier().linear
        assert_close(outputs, linear(torch.cat([2 * 0.5 * first, 2 * 0.5 * second], 1)))


def branch_features(net, inputs, branch):
    """By hand: the body of the perceptron with one of its branches."""
    x = inputs
    for layer in net.model.body:
        x = (layer.second if branch else layer.first)(x) if hasattr(layer, "second") else layer(x)
    return x


# ---------------------------------------------------------------------------------------------------------------------
# Branches
# ---------------------------------------------------------------------------------------------------------------------


def test_training_matches_a_plain_version():
    net = tiny().double()
    a, b = torch.randn(6, 4).double(), torch.randn(6, 4).double()
    net.set_epoch(4)
    with torch.no_grad():
        net.model.body[3].second.weight.add_(1.0)  # tell the branches apart
    share, linear = 1 - (4 / 9) ** 2, net.get_classifier().linear
    mixed = 2 * torch.cat([share * branch_features(net, a, 0), (1 - share) * branch_features(net, b, 1)], 1)
    assert_close(net(a, b), linear(mixed))


def test_each_branch_learns_from_its_batch():
    net = tiny()
    data = [(torch.randn(6, 4), torch.arange(6) % 3) for _ in range(2)]
    block = net.model.body[3]
    net.set_epoch(0)  # only the first counts
    train_step(net, *data)
    assert block.first.weight.grad.abs().sum() > 0
    assert block.second.weight.grad.abs().sum() == 0
    net.zero_grad()
    net.set_epoch(9)  # only the second
    train_step(net, *data)
    assert block.first.weight.grad.abs().sum() == 0
    assert block.second.weight.grad.abs().sum() > 0


def test_nothing_but_the_block_is_copied():
    model = build("resnet32")
    before = {id(parameter) for parameter in model.parameters()}
    trunk = sum(parameter.numel() for parameter in model.parameters())
    block = sum(parameter.numel() for parameter in model.layer3[4].parameters())
    net = bilateral(model, epochs=2)
    assert net.model is model
    assert sum(parameter.numel() for parameter in net.parameters()) == trunk + block + 64 * C
    own = {id(parameter) for parameter in net.parameters()}
    assert len(before - own) == 2  # weight and bias of the old classifier


def test_batch_norm_sees_each_batch_alone():
    """As published: the trunk runs once for each batch, so that its statistics are never those of the join."""
    torch.manual_seed(0)
    net = bilateral(MLP(4, 3, hidden=(6, 6), batch_norm=True), epochs=2)
    norm, seen = net.model.body[1], []
    norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    a, b = torch.randn(8, 4), torch.randn(8, 4) + 5.0
    net(a, b)
    assert [len(each) for each in seen] == [8, 8]
    assert_close(seen[0], net.model.body[0](a).detach())


@pytest.mark.parametrize("name", MODELS)
def test_any_model(name):
    model = build(name)
    shape = model.eval()(batch(name)).shape
    net = bilateral(model.train(), epochs=3)
    places = (shape[0], *shape[2:])
    data = [(batch(name, seed=seed), torch.randint(0, C, places)) for seed in (1, 2)]
    net.set_epoch(1)
    logits, total = train_step(net, *data)
    assert logits.shape == shape
    assert total.isfinite()
    missing = [key for key, each in net.named_parameters() if each.grad is None]
    assert not missing
    assert net.eval()(data[0][0]).shape == shape
    assert find_classifier(net).num_classes == C


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("mlp", ("body.3",)),
        ("resnet32", ("layer3.4",)),
        ("resnet18", ("layer4.1",)),
        ("resnet50", ("layer4.2",)),
        ("unet", ("up.2",)),
        ("deeplabv3", ("pyramid",)),
        ("text-bow", ("body.0",)),
        ("wideresnet26-10", ("layer3.3",)),
        ("densenet121", ("features.denseblock4.denselayer16",)),
        ("text-pooling-cnn", ("hidden",)),
        ("text-cnn", ("convolutions.0", "convolutions.1", "convolutions.2")),
    ],
)
def test_the_last_block_is_found(name, block):
    assert find_last_block(build(name)) == block


def test_the_last_block_of_models_of_others():
    stage = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    wrapped = nn.Sequential(nn.Sequential(nn.Linear(4, 8), stage), nn.Flatten(), nn.Linear(8, 3))
    assert find_last_block(wrapped) == ("0.1.2",)
    normed = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    assert find_last_block(normed) == ("1",)  # and not the norm behind it
    inside = nn.Sequential(nn.Linear(4, 8), stage, nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3)))
    assert find_last_block(inside) == ("1.2",)
    replaced = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    replace_classifier(replaced, nn.Linear(8, 5))
    assert find_last_block(replaced) == ("0",)


def test_the_block_can_be_named():
    net = tiny(block="body")
    assert type(net.model.body.first) is nn.Sequential
    assert net.model.body.second is not net.model.body.first
    both = tiny(block=("body.0", "body.3"))
    train_step(both, *[(torch.randn(6, 4), torch.arange(6) % 3) for _ in range(2)])
    assert both.model.body[0].second.weight.grad is not None


# ---------------------------------------------------------------------------------------------------------------------
# State, precision, compilation, processes
# ---------------------------------------------------------------------------------------------------------------------


def test_mixing_resumes_from_its_state():
    net, fresh = tiny(), tiny(mixing=Constant(0.3))
    net.set_epoch(7)
    fresh.load_state_dict(net.state_dict())
    a, b = torch.randn(6, 4), torch.randn(6, 4)
    assert torch.equal(net(a, b), fresh(a, b))
    copied = copy.deepcopy(net)
    assert torch.equal(copied(a, b), net(a, b))


def test_nothing_is_left_in_the_model_after_a_pass():
    net = tiny()
    net(torch.randn(6, 4), torch.randn(6, 4))
    assert net.get_classifier().first is None
    net.eval()
    with pytest.raises(RuntimeError):
        net(torch.randn(6, 9))
    assert net.get_classifier().first is None


def test_half_precision_keeps_the_share():
    net = tiny().bfloat16()
    net.set_epoch(3)
    assert float(net.share) == 1 - (3 / 9) ** 2
    logits = net(torch.randn(6, 4).bfloat16(), torch.randn(6, 4).bfloat16())
    assert logits.dtype is torch.bfloat16
    loss = F.cross_entropy(logits, torch.zeros(6, dtype=torch.long))
    assert net.mix(loss, loss).dtype is loss.dtype
    with torch.autocast("cpu", torch.bfloat16):
        assert tiny()(torch.randn(6, 4), torch.randn(6, 4)).isfinite().all()


def test_compiled():
    net = tiny()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    a, b = torch.randn(6, 4), torch.randn(6, 4)
    for epoch in (0, 5):
        net.set_epoch(epoch)
        assert_close(compiled(a, b), net(a, b))
    net.eval()
    assert_close(compiled(a), net(a))


def train_apart(rank, folder):
    """A step of BBN on half of each batch; what was learned is left behind."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    net = DistributedDataParallel(tiny())
    net.module.set_epoch(4)
    train_step(net, *[(inputs[rank::2], labels[rank::2]) for inputs, labels in two_batches()])
    grads = {name: parameter.grad for name, parameter in net.module.named_parameters()}
    torch.save(grads, f"{folder}/{rank}.pt")
    leave()


def two_batches():
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(8, 4, generator=draw), torch.arange(8) % 3) for _ in range(2)]


def test_two_processes_learn_what_one_learns(tmp_path):
    one, other = on_two_processes(train_apart, tmp_path, 60)
    net = tiny()
    net.set_epoch(4)
    train_step(net, *two_batches())
    for name, parameter in net.named_parameters():
        assert_close(one[name], parameter.grad)
        assert_close(one[name], other[name])


def test_distribute_afterwards():
    class Fake(DistributedDataParallel):
        def __init__(self):
            nn.Module.__init__(self)

    with pytest.raises(ValueError, match=says("model", "DistributedDataParallel")):
        bilateral(Fake(), epochs=2)


# ---------------------------------------------------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: bilateral(MLP(4, 3), epochs=0), ("epochs", "at least 1", "got 0")),
        (lambda: bilateral(MLP(4, 3), epochs=2, preset="paper"), ("preset", "'published'")),
        (lambda: bilateral(MLP(4, 3), epochs=2, preset="published", mixing=Constant(0.5)), ("mixing",)),
        (lambda: bilateral(MLP(4, 3), epochs=2, block="nobody"), ("block", "'nobody'")),
        (lambda: bilateral(MLP(4, 3), epochs=2, block="classifier"), ("block", "classifier")),
        (lambda: bilateral(build("linear"), epochs=2), ("model", "before its classifier")),
        (lambda: bilateral(tiny(), epochs=2), ("model", "one head", "'model.classifier'", "two branches already")),
        (
            lambda: bilateral(tiny().model, epochs=2),
            ("model", "one head", "two branches already", "build the model again"),
        ),
        (lambda: bilateral(decouple(MLP(4, 3)).model, epochs=2), ("model", "one head", "decoupled already", "merge()")),
        (
            lambda: bilateral(cosine(), epochs=2),
            ("the classifier 'classifier'", "linear layer", "got CosineClassifier"),
        ),
        (lambda: BranchMixing(end="never"), ("end", "'last_epoch'")),
        (lambda: tiny()(torch.randn(2, 4)), ("reversed_inputs", "None")),
        (lambda: tiny().eval()(torch.randn(2, 4), torch.randn(2, 4)), ("reversed_inputs",)),
        (lambda: tiny()(torch.randn(2, 4), torch.randn(3, 4)), ("reversed_inputs", "3 for 2")),
        (lambda: tiny().set_progress(1.5), ("fraction",)),
        (lambda: tiny().set_epoch(-1), ("epoch", "[0, 9] for epochs=10", "got -1", "count from 0")),
        (lambda: tiny(epochs=3).set_epoch(7), ("epoch", "[0, 2] for epochs=3", "got 7", "epochs you train for")),
        (lambda: tiny(mixing=Constant(2.0)).set_epoch(0), ("weight of the first branch",)),
    ],
)
def test_errors(call, parts):
    with pytest.raises(ValueError, match=says(*parts)):
        call()


def test_invalid_schedules_and_models_raise():
    with pytest.raises(TypeError, match=says("mixing", "equipoise.schedules", "got float 0.5", "Constant(0.5)")):
        bilateral(MLP(4, 3), epochs=2, mixing=0.5)
    with pytest.raises(TypeError, match=says("model", "nn.Module", "got function")):
        bilateral(lambda x: x, epochs=2)
    with pytest.raises(TypeError, match=says("the classifier 'body.1'", "got ReLU", "body.0, main, unused")):
        bilateral(TwoHeads(), epochs=2, name="body.1")


@pytest.mark.parametrize("training", [True, False])
def test_a_classifier_that_the_model_never_uses(training):
    model = TwoHeads()
    net = bilateral(model, epochs=2, name="unused").train(training)
    message = says(
        "the classifier 'unused'",
        "used in every",
        "got a pass of TwoHeads",
        "build the model again",
        "body.0, main, unused",
    )
    with pytest.raises(RuntimeError, match=message):
        net(*[torch.randn(2, 12)] * (2 if training else 1))
    with pytest.raises(ValueError, match=says("model", "one head", "'unused'", "build the model again")):
        bilateral(model, epochs=2, name="main")
    right = bilateral(TwoHeads(), epochs=2, name="main").train(training)
    assert right(*[torch.randn(2, 12)] * (2 if training else 1)).shape == (2, C)


def test_pooled_maps():
    net = bilateral(pooled(), epochs=2)
    assert net(torch.randn(4, 1, 8, 8), torch.randn(4, 1, 8, 8)).shape == (4, C)


def test_a_classifier_that_is_not_its_own():
    net = tiny()
    net._choose(1)
    with pytest.raises(RuntimeError, match=says("the classifier", "called once")):
        net.model(torch.randn(2, 4))  # the model inside
    replace_classifier(net.model, nn.Linear(6, 3))
    with pytest.raises(RuntimeError, match=says("the classifier", "both branches", "Linear")):
        net(torch.randn(2, 4), torch.randn(2, 4))


def test_a_model_that_failed_is_unchanged():
    model = MLP(4, 3)
    with pytest.raises(ValueError, match="nobody"):
        bilateral(model, epochs=2, block=("body.0", "nobody"))
    assert type(model.body[0]) is nn.Linear
    assert not isinstance(model, BilateralModel)
