"""Open long-tailed recognition: the head and its memory against slow plain versions, two stages, open-set decision."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import equipoise as eq
from equipoise.heads import CentroidMemory, KeptFeatures, MetaEmbedding, keep_features, open_set_prediction
from equipoise.metrics import OpenSetScores
from equipoise.models import MLP, features_of, find_classifier, replace_classifier
from tests.models.cases import IMAGE, MAPS, OPTIONS, C, batch, build, says
from tests.processes import leave, on_two_processes

D = 6
LOSSES = {
    "ce": lambda epochs: eq.CrossEntropyLoss(),
    "fl": lambda epochs: eq.FocalLoss(),
    "asl": lambda epochs: eq.AsymmetricSoftmaxLoss(),
    "cfl": lambda epochs: eq.CyclicalFocalLoss(epochs),
    "casl": lambda epochs: eq.CyclicalAsymmetricLoss(epochs),
}


def filled(seed=0, classes=4, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    head = MetaEmbedding(D, classes, **options).to(dtype)
    head.memory.fill(torch.randn(classes, D, dtype=dtype))
    return head


def test_the_memory_has_the_options_of_the_head():
    memory = MetaEmbedding(D, 4, dim=1, ignore_index=255).memory
    assert (tuple(memory.centroids.shape), memory.dim, memory.ignore_index) == ((4, D), 1, 255)


def test_initial_weights_are_those_of_a_linear_layer():
    """Uniform within 1 / sqrt(D)."""
    torch.manual_seed(0)
    head = MetaEmbedding(100, 50)
    for weight in (head.weight, head.query.weight, head.selector.weight):
        assert weight.min().item() == pytest.approx(-0.1, rel=0.01)
        assert weight.max().item() == pytest.approx(0.1, rel=0.01)
        assert abs(weight.mean().item()) < 0.005


def slow_logits(head, row):
    """One sample, step by step as the paper and the published code have it."""
    centroids = head.memory.centroids.detach()
    distances = torch.stack([(row - centroid).norm() for centroid in centroids])
    reachability = 10.0 / distances.min()
    values = torch.softmax(head.query.weight @ row + head.query.bias, 0)
    memory = sum(value * centroid for value, centroid in zip(values, centroids, strict=True))
    concept = torch.tanh(head.selector.weight @ row + head.selector.bias)
    meta = reachability * (row + concept * memory)
    norm = meta.norm()
    squashed = (norm / (1 + norm)) * (meta / norm)
    return torch.stack([16.0 * squashed @ (weight / weight.norm()) for weight in head.weight])


def slow_memory_loss(features, labels, centroids, margin=10.0, repel=0.01):
    """Value and gradients of the published loss, sample by sample, the gradient of the attraction by its own rule."""
    n, c = len(features), len(centroids)
    attract = sum(((x - centroids[y]) ** 2).sum() for x, y in zip(features, labels, strict=True)) / (2 * n)
    to_features, to_centroids = torch.zeros_like(features), torch.zeros_like(centroids)
    for i, y in enumerate(labels.tolist()):
        difference = centroids[y] - features[i]
        to_features[i] -= difference / n
        to_centroids[y] += difference / (1 + int((labels == y).sum())) / n
    apart = 0.0
    for i, y in enumerate(labels.tolist()):
        for j in range(c):
            if j != y:
                apart += ((features[i] - centroids[j]) ** 2).sum() / (n * c)
    push = margin - apart
    if push > 0:
        for i, y in enumerate(labels.tolist()):
            for j in range(c):
                if j != y:
                    slope = -repel * 2 * (features[i] - centroids[j]) / (n * c)
                    to_features[i] += slope
                    to_centroids[j] -= slope
    return attract + repel * max(push, 0.0), to_features, to_centroids


# ---------------------------------------------------------------------------------------------------------------------
# Against the slow versions
# ---------------------------------------------------------------------------------------------------------------------


def test_logits_match_the_slow_version():
    head, rows = filled(), torch.randn(7, D, dtype=torch.float64)
    assert_close(head(rows), torch.stack([slow_logits(head, row) for row in rows]))


def test_gradients_match_the_slow_version():
    head, rows = filled(), torch.randn(5, D, dtype=torch.float64, requires_grad=True)
    wanted = [rows, head.query.weight, head.query.bias, head.selector.weight, head.selector.bias, head.weight]
    mix = torch.randn(5, 4, dtype=torch.float64)
    gradients = torch.autograd.grad((head(rows) * mix).sum(), wanted)
    slow = torch.stack([slow_logits(head, row) for row in rows])
    for one, other in zip(gradients, torch.autograd.grad((slow * mix).sum(), wanted), strict=True):
        assert_close(one, other)
    head(rows).sum().backward()
    assert head.memory.centroids.grad is None  # they learn from their own loss


@pytest.mark.parametrize("spread", [0.3, 5.0], ids=["pushing", "far"])
def test_memory_loss_and_its_gradients_match_the_slow_version(spread):
    memory = filled().memory
    draw = torch.Generator().manual_seed(2)
    features = spread * torch.randn(9, D, generator=draw, dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 3, 3, 3])  # no sample of class 2
    expected, to_features, to_centroids = slow_memory_loss(features, labels, memory.centroids.detach())
    features.requires_grad_()
    loss = memory(features, labels)
    loss.backward()
    assert_close(loss.detach(), expected)
    assert_close(features.grad, to_features)
    assert_close(memory.centroids.grad, to_centroids)


def test_the_memory_is_updated_as_the_slow_version_says():
    memory = filled().memory
    optimizer = torch.optim.SGD(memory.parameters(), lr=0.5)
    plain = memory.centroids.detach().clone()
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        features = torch.randn(8, D, generator=draw, dtype=torch.float64)
        labels = torch.randint(0, 4, (8,), generator=draw)
        optimizer.zero_grad()
        memory(features, labels).backward()
        optimizer.step()
        plain -= 0.5 * slow_memory_loss(features, labels, plain)[2]
    assert_close(memory.centroids.detach(), plain)


def test_ignored_samples_have_no_effect():
    memory = filled().memory
    features, labels = torch.randn(6, D, dtype=torch.float64), torch.tensor([0, 1, -100, 2, -100, 0])
    valid = labels != -100
    assert_close(memory(features, labels), memory(features[valid], labels[valid]))
    nothing = memory(features.requires_grad_(), torch.full((6,), -100))
    nothing.backward()
    assert float(nothing.detach()) == 0.0
    assert features.grad.abs().sum() == 0


def test_centroids_after_stage_one_are_class_means():
    torch.manual_seed(0)
    model = MLP(4, 3, hidden=(D,))
    inputs, labels = torch.randn(30, 4), torch.arange(30) % 2  # no sample of class 2
    kept = keep_features(model, [(inputs, labels)])
    head = MetaEmbedding.after(model, kept)
    for c in (0, 1):
        total = torch.zeros(D)
        for row, label in zip(kept.features, kept.labels, strict=True):
            total += row * (label == c)
        assert_close(head.memory.centroids[c].detach(), total / 15)
    assert_close(head.memory.centroids[2].detach(), head.memory.centroids[:2].detach().mean(0))
    assert torch.equal(head.query.weight, model.classifier.weight)
    assert torch.equal(head.query.bias, model.classifier.bias)


# ---------------------------------------------------------------------------------------------------------------------
# Extremes
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_on_a_centroid_at_zero_and_far_away(dtype):
    head = filled(dtype=dtype)
    rows = torch.stack(
        [head.memory.centroids[1].detach(), torch.zeros(D, dtype=dtype), torch.full((D,), 1e4, dtype=dtype)]
    ).requires_grad_()
    logits = head(rows)
    assert logits.dtype is dtype
    assert logits.isfinite().all()
    logits.float().sum().backward()
    assert rows.grad.isfinite().all()
    assert all(each.grad.isfinite().all() for key, each in head.named_parameters() if key != "memory.centroids")


def test_far_from_every_centroid_there_is_little_confidence():
    """As the distance to the memory grows, with a fixed embedding, logits shrink: what open-set rejection uses."""
    head, row = filled(), torch.randn(1, D, dtype=torch.float64)
    head.selector.weight.data.zero_()
    head.selector.bias.data.zero_()  # the embedding is the feature alone
    sizes = []
    for far in (0.0, 10.0, 1000.0):
        head.memory.fill(torch.full((4, D), far, dtype=torch.float64) + row)
        sizes.append(float(head(row).detach().abs().max()))
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < 0.3


def test_under_autocast():
    head = filled(dtype=torch.float32)
    rows, labels = torch.randn(5, D), torch.tensor([0, 1, 2, 3, 0])
    exact, loss = head(rows), head.memory(rows, labels)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(head(rows).float(), exact, rtol=0.1, atol=0.1)
        assert_close(head.memory(rows, labels), loss)  # not in half precision at all
    head.selector.weight.data.zero_()
    head.selector.bias.data.zero_()  # the embedding is the feature alone, and the rest is not in half precision either
    with torch.autocast("cpu", torch.bfloat16):
        logits = head(rows)
    assert_close(logits, head.double()(rows.double()).float())


# ---------------------------------------------------------------------------------------------------------------------
# Two stages
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_any_model(name):
    model = build(name).eval()
    inputs = batch(name)
    labels = torch.randint(0, C, (4, *IMAGE[1:]) if name in MAPS else (4,), generator=torch.Generator().manual_seed(0))
    expected = model(inputs).shape
    head = MetaEmbedding.after(model, keep_features(model, [(inputs, labels)]))
    replace_classifier(model, head)
    assert find_classifier(model).num_classes == C
    with features_of(model.train()) as view:
        features, logits = view(inputs)
    assert logits.shape == expected
    coarse = labels
    if name in MAPS:
        coarse = F.interpolate(labels[:, None].float(), size=features.shape[-2:], mode="nearest-exact")[:, 0].long()
    (F.cross_entropy(logits, labels) + 0.01 * head.memory(features, coarse)).backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.parameters())
    assert open_set_prediction(logits).shape == labels.shape


@pytest.mark.parametrize("name", LOSSES)
def test_two_stages_with_every_loss(name):
    torch.manual_seed(0)
    centres = 3.0 * torch.eye(3, 4)
    labels = torch.arange(90) % 3
    inputs = centres[labels] + 0.3 * torch.randn(90, 4)
    model = MLP(4, 3, hidden=(16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    head = MetaEmbedding.after(model, keep_features(model, [(inputs, labels)]))
    replace_classifier(model, head)
    loss, optimizer, seen = LOSSES[name](20), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    with features_of(model) as view:
        for epoch in range(20):
            if hasattr(loss, "set_epoch"):
                loss.set_epoch(epoch)
            optimizer.zero_grad()
            features, logits = view(inputs)
            total = loss(logits, labels) + 0.01 * head.memory(features, labels)
            total.backward()
            optimizer.step()
            seen.append(float(F.cross_entropy(logits, labels)))
    assert seen[-1] < seen[0] / 2
    assert (model(inputs).argmax(1) == labels).float().mean() > 0.95


def test_stage_two_without_stage_one():
    model = MLP(4, 3, hidden=(D,))
    replace_classifier(model, MetaEmbedding(D, 3))
    with pytest.raises(RuntimeError, match=says("the memory", "stage one", "MetaEmbedding.after")):
        model(torch.randn(2, 4))
    with pytest.raises(RuntimeError, match=says("the memory", "stage one")):
        model.classifier.memory(torch.randn(2, D), torch.tensor([0, 1]))
    replace_classifier(model, MetaEmbedding(D, 3))
    unfilled = MetaEmbedding(D, 3)
    unfilled.load_state_dict(model.classifier.state_dict())  # the state of a stage two that never began
    with pytest.raises(RuntimeError, match="stage one"):
        unfilled(torch.randn(2, D))


def test_stage_two_resumes_from_its_state():
    head, fresh = filled(dtype=torch.float32), MetaEmbedding(D, 4)
    fresh.load_state_dict(head.state_dict())
    rows = torch.randn(3, D)
    assert torch.equal(fresh(rows), head(rows))
    with pytest.raises(RuntimeError, match="size mismatch"):
        MetaEmbedding(D, 5).load_state_dict(head.state_dict())


def test_maps_are_rows_of_pixels():
    head, flat = filled(dim=-3), filled()
    maps = torch.randn(2, D, 3, 5, dtype=torch.float64)
    logits = head(maps)
    assert logits.shape == (2, 4, 3, 5)
    assert_close(logits[1, :, 2, 4], flat(maps[1, :, 2, 4].unsqueeze(0))[0])
    labels = torch.randint(0, 4, (2, 3, 5))
    assert_close(head.memory(maps, labels), flat.memory(maps.movedim(1, -1).reshape(-1, D), labels.flatten()))


def train_apart(rank, folder):
    """A step of stage two on half of a batch; what was learned is left behind."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    net = DistributedDataParallel(Both(filled()))
    draw = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(8, D, generator=draw, dtype=torch.float64), torch.arange(8) % 4
    net(rows[rank::2], labels[rank::2]).backward()
    torch.save({name: parameter.grad for name, parameter in net.module.named_parameters()}, f"{folder}/{rank}.pt")
    leave()


class Both(nn.Module):
    """Both losses of stage two, inside what is distributed."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, rows, labels):
        return F.cross_entropy(self.head(rows), labels) + 0.01 * self.head.memory(rows, labels)


def test_two_processes_learn_what_one_learns(tmp_path):
    one, other = on_two_processes(train_apart, tmp_path, 60)
    net = Both(filled())
    draw = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(8, D, generator=draw, dtype=torch.float64), torch.arange(8) % 4
    net(rows, labels).backward()
    for name, parameter in net.named_parameters():
        assert_close(one[name], other[name])
        if name != "head.memory.centroids":  # divided by 1 + the samples of a class in the batch of a process
            assert_close(one[name], parameter.grad)
    halves = [(rows[rank::2], labels[rank::2]) for rank in range(2)]
    slow = [slow_memory_loss(*half, net.head.memory.centroids.detach())[2] for half in halves]
    assert_close(one["head.memory.centroids"], 0.01 * (slow[0] + slow[1]) / 2)


def test_compiled():
    head = filled(dtype=torch.float32)
    compiled = torch.compile(head, backend="eager", fullgraph=True)
    rows = torch.randn(5, D)
    assert_close(compiled(rows), head(rows))


# ---------------------------------------------------------------------------------------------------------------------
# Open set
# ---------------------------------------------------------------------------------------------------------------------


def test_the_decision_is_the_one_that_the_metric_scores():
    logits = 4 * torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(-1, 5, (200,), generator=torch.Generator().manual_seed(1))
    predicted = open_set_prediction(logits, threshold=0.6)
    metric = OpenSetScores(0.6)
    metric.update(logits, targets)
    known = targets >= 0
    assert float(metric.compute()["accuracy"]) == pytest.approx(float((predicted == targets)[known].double().mean()))
    assert set(predicted.tolist()) == {-1, 0, 1, 2, 3, 4}
    assert (open_set_prediction(logits, threshold=0.0) == logits.argmax(1)).all()
    assert (open_set_prediction(logits, threshold=0.6, unknown=9) == 9).sum() == (predicted == -1).sum()


def test_the_threshold_itself_is_accepted():
    assert open_set_prediction(torch.zeros(1, 2), threshold=0.5).tolist() == [0]


# ---------------------------------------------------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------------------------------------------------


def kept(width=D, classes=3):
    return KeptFeatures(torch.randn(9, width), torch.arange(9) % classes, classes)


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (lambda: MetaEmbedding(0, 3), ValueError, ("in_features",)),
        (lambda: MetaEmbedding(D, 3, scale=0.0), ValueError, ("scale",)),
        (lambda: MetaEmbedding(D, 3, reach=-1.0), ValueError, ("reach",)),
        (lambda: CentroidMemory(D, 3, margin=-1.0), ValueError, ("margin",)),
        (lambda: MetaEmbedding.after(nn.Linear(D, 4), kept()), ValueError, ("kept", "4 classes", "3 classes")),
        (lambda: MetaEmbedding.after(nn.Linear(5, 3), kept()), ValueError, ("kept", "width 5", "width 6")),
        (lambda: filled().memory.fill(torch.zeros(9, D)), ValueError, ("centroids", "(4, 6)", "(9, 6)")),
        (lambda: filled().memory.fill(torch.full((4, D), torch.nan)), ValueError, ("centroids", "finite")),
        (lambda: filled().memory.fill(torch.full((4, D), torch.inf)), ValueError, ("centroids", "finite")),
        (lambda: filled().memory(torch.zeros(2, 5), torch.tensor([0, 1])), ValueError, ("features", "(2, 5)")),
        (lambda: filled().memory(torch.zeros(2, D), torch.tensor([0])), ValueError, ("features", "(1,)")),
        (lambda: filled().memory(torch.zeros(2, D), torch.tensor([0, 4])), ValueError, ("targets", "[0, 3]", "got 4")),
        (lambda: open_set_prediction(torch.zeros(2, 3), threshold=1.5), ValueError, ("threshold",)),
        (lambda: open_set_prediction(torch.zeros(3)), ValueError, ("logits", "(N, C, ...)")),
    ],
)
def test_errors(call, error, parts):
    with pytest.raises(error, match=says(*parts)):
        call()


class Sized(nn.Module):
    """A classifier that says its width, with any weight or none."""

    def __init__(self, *weight: int) -> None:
        super().__init__()
        self.in_features, self.out_features = D, 3
        if weight:
            self.weight = nn.Parameter(torch.zeros(weight))


@pytest.mark.parametrize("classifier", [Sized(), Sized(D, 3)], ids=["no weight", "transposed"])
def test_stage_one_has_a_linear_classifier(classifier):
    model = nn.Sequential(nn.Linear(4, D), classifier)
    with pytest.raises(TypeError, match=r"classifier '1' of stage one must have a weight \(C, D\), got Sized"):
        MetaEmbedding.after(model, kept(), name="1")


def test_no_third_stage():
    model = MLP(4, 3, hidden=(D,))
    replace_classifier(model, MetaEmbedding.after(model, kept()))
    with pytest.raises(ValueError, match=says("model", "is a MetaEmbedding")):
        MetaEmbedding.after(model, kept())


def test_centroids_are_finite_or_absent_one_by_one():
    centroids = torch.randn(4, D, generator=torch.Generator().manual_seed(0))
    for value in (torch.inf, -torch.inf):
        wrong = centroids.clone()
        wrong[2, 1] = value
        with pytest.raises(ValueError, match="centroids must be finite"):
            filled().memory.fill(wrong)
    absent = centroids.clone()
    absent[2, 1] = torch.nan  # as a whole: the rest of the row is ignored
    memory = filled().memory
    memory.fill(absent)
    others = absent.nanmean(0)
    expected = torch.stack([*centroids[:2], others, centroids[3]])
    assert_close(memory.stored().detach(), expected, check_dtype=False)
