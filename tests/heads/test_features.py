"""Features that are computed once and kept."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.heads import KeptFeatures, features, keep_features
from equipoise.models import MLP, features_of, find_classifier
from tests.models.cases import IMAGE, MAPS, OPTIONS, C, batch, build, pooled, says

PLAIN = sorted(set(OPTIONS) - set(MAPS))


@pytest.mark.parametrize("name", PLAIN)
def test_rows_are_what_the_classifier_sees(name):
    model = build(name).train()
    first, second = batch(name, seed=1), batch(name, seed=2)
    labels = torch.tensor([0, 1, 4, -100])
    kept = keep_features(model, [(first, labels), (second, labels)])
    assert model.training  # as before
    assert kept.features.requires_grad is False
    model.eval()
    with features_of(model) as view:
        expected = torch.cat([view(first).features[:3], view(second).features[:3]])
    assert_close(kept.features, expected.detach())
    assert kept.labels.tolist() == [0, 1, 4] * 2
    assert kept.counts.tolist() == [2, 2, 0, 0, 2]
    assert kept.num_classes == C


@pytest.mark.parametrize("name", MAPS)
def test_pixels_of_maps_are_rows(name):
    model = build(name).eval()
    inputs = batch(name)
    labels = torch.randint(0, C, (len(inputs), *IMAGE[1:]))
    labels[:, :8] = 2
    labels[0] = -100
    kept = keep_features(model, [(inputs, labels)])
    with features_of(model) as view:
        seen = view(inputs).features.detach()
    size = seen.shape[-1]
    assert kept.dim == -3
    assert len(kept.features) == 3 * size * size
    assert_close(kept.features[0], seen[1, :, 0, 0])
    assert_close(kept.features[-1], seen[3, :, -1, -1])
    assert (kept.labels.view(3, size, size)[:, : size // 2] == 2).all()  # brought to the size of the features


def test_samples_of_pooled_maps_are_rows():
    model, inputs, labels = pooled().eval(), torch.randn(4, 1, 8, 8), torch.tensor([0, 1, -100, 4])
    kept = keep_features(model, [(inputs, labels)])
    assert_close(kept.features, model[:3](inputs).flatten(1)[[0, 1, 3]].detach())
    assert (kept.labels.tolist(), kept.dim) == ([0, 1, 4], -3)
    assert torch.equal(keep_features(model, [(inputs, labels.view(4, 1, 1))]).features, kept.features)
    several = (torch.arange(4 * C).view(4, C) % 3 == 0).long()
    assert keep_features(model, [(inputs, several)]).labels.tolist() == several.tolist()
    with pytest.raises(ValueError, match=says("labels", "(4,)", "got (3,)")):
        keep_features(model, [(inputs, labels[:3])])


def test_some_rows_of_each_batch():
    model = build("unet").eval()
    data = [(batch("unet", seed=seed), torch.randint(0, C, (4, *IMAGE[1:]))) for seed in range(2)]
    all_rows = keep_features(model, data)
    some = keep_features(model, data, rows_per_batch=10)
    assert some.features.shape == (20, all_rows.features.shape[1])
    where = (some.features.unsqueeze(1) == all_rows.features).all(2)
    assert where.any(1).all()
    again, other = (keep_features(model, data, rows_per_batch=10, seed=seed) for seed in (0, 1))
    assert torch.equal(some.features, again.features)
    assert not torch.equal(some.features, other.features)


def test_several_labels():
    labels = torch.tensor([[1, 0, -1], [1, 1, 0]])
    kept = keep_features(MLP(4, 3, hidden=(8,)), [(torch.randn(2, 4), labels)])
    assert kept.labels.tolist() == labels.tolist()
    assert kept.counts.tolist() == [2, 1, 0]
    with pytest.raises(ValueError, match=says("labels", "single-label", "(2, 3)")):
        kept.class_means()


def test_modes_of_parts_come_back_also_after_an_error():
    model = MLP(4, 3, hidden=(8,), batch_norm=True).train()
    model.body[1].eval()  # frozen batch norm in a model that trains
    with pytest.raises(RuntimeError):
        keep_features(model, [(torch.randn(2, 5), torch.tensor([0, 1]))])
    assert model.training
    assert not model.body[1].training
    assert not find_classifier(model).module._forward_pre_hooks


def test_class_means_match_a_loop():
    rows, labels = torch.randn(40, 5), torch.randint(0, 3, (40,))
    means = KeptFeatures(rows, labels, 4).class_means()
    for c in range(3):
        assert_close(means[c], rows[labels == c].mean(0))
    assert means[3].isnan().all()


def test_half_precision_is_kept_in_float32():
    kept = keep_features(MLP(4, 3, hidden=(8,)).bfloat16(), [(torch.randn(2, 4).bfloat16(), torch.tensor([0, 1]))])
    assert kept.features.dtype is torch.float32


def test_insufficient_memory_raises_at_the_first_batch(monkeypatch):
    model, seen = MLP(4, 3, hidden=(8,)), []

    class Data(list):
        def __iter__(self):
            for each in super().__iter__():
                seen.append(each)
                yield each

    data = Data([(torch.randn(16, 4), torch.zeros(16, dtype=torch.long))] * 100)
    needed = 2 * 100 * 16 * 8 * 4
    monkeypatch.setattr(features, "_free_bytes", lambda device: needed)
    assert len(keep_features(model, data).features) == 1600
    seen.clear()
    monkeypatch.setattr(features, "_free_bytes", lambda device: needed - 1)
    with pytest.raises(MemoryError, match=says("features", "fit into the memory of cpu", "; pass rows_per_batch")):
        keep_features(model, data)
    assert len(seen) == 1
    with pytest.raises(MemoryError, match=says("features", "memory of meta", "; pass device='cpu', rows_per_batch")):
        keep_features(model, data, device="meta")


def test_streams_have_no_length():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([(torch.ones(4), 0), (torch.zeros(4), 2), (torch.ones(4), 1)])

    model = MLP(4, 3, hidden=(8,))
    assert keep_features(model, torch.utils.data.DataLoader(Stream(), batch_size=2)).labels.tolist() == [0, 2, 1]
    assert keep_features(model, ((torch.ones(1, 4), torch.tensor([2])) for _ in range(2))).labels.tolist() == [2, 2]


def test_free_memory_of_this_machine_is_known():
    assert features._free_bytes(torch.device("cpu")) > 2**20
    assert features._free_bytes(torch.device("meta")) == float("inf")


@pytest.mark.parametrize(
    ("data", "error", "parts"),
    [
        ([], ValueError, ("batches", "a generator")),
        ([(torch.randn(2, 4), torch.tensor([0, 3]))], ValueError, ("labels", "[0, 2]", "got 3")),
        ([(torch.randn(2, 4), torch.tensor([0, -1]))], ValueError, ("labels", "[0, 2]", "got -1")),
        ([(torch.randn(2, 4), torch.tensor([0]))], ValueError, ("labels", "(2,)", "(1,)")),
        ([(torch.randn(2, 4), torch.tensor([0.0, 1.0]))], TypeError, ("labels", "integer")),
        ([(torch.randn(2, 4), torch.zeros(2, 4, dtype=torch.int64))], ValueError, ("features", "(N, 3)", "(2, 4)")),
        ([(torch.randn(2, 4), torch.full((2,), -100))], ValueError, ("features", "at least one")),
        ([(torch.full((2, 4), torch.nan), torch.tensor([0, 1]))], ValueError, ("features", "finite")),
    ],
)
def test_errors(data, error, parts):
    with pytest.raises(error, match=says(*parts)):
        keep_features(MLP(4, 3, hidden=(8,)), data)


X, Y = torch.randn(3, 4), torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("batches", "came"),
    [
        ([X], "got Tensor;"),
        ((X, Y), "got Tensor;"),
        ([{"x": X, "y": Y}], "got dict of 'x', 'y';"),
        ([(X, Y, Y)], "got tuple of Tensor, Tensor, Tensor;"),
        ([(X, 3)], "got tuple of Tensor, int;"),
        (7, "got int;"),
    ],
)
def test_invalid_batches_raise(batches, came):
    with pytest.raises(TypeError, match=says("batches", "pairs (inputs, labels)", came, "[(inputs, labels)]")):
        keep_features(MLP(4, 3, hidden=(8,)), batches)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", 1.5])
def test_devices_that_are_not_there(device):
    with pytest.raises(ValueError, match=says("device", "on this machine", f"got '{device}'", "pass 'cpu'")):
        keep_features(MLP(4, 3, hidden=(8,)), [(X, Y)], device=device)


def test_rows_are_counted_in_whole_numbers():
    with pytest.raises(TypeError, match=says("rows_per_batch", "integer", "got 1.5")):
        keep_features(MLP(4, 3, hidden=(8,)), [(X, Y)], rows_per_batch=1.5)


def test_a_lazy_classifier_needs_a_batch():
    with pytest.raises(
        ValueError, match=says("the classifier '1'", "its width", "got LazyLinear", "run the model on a batch")
    ):
        keep_features(nn.Sequential(nn.Linear(4, 8), nn.LazyLinear(3)), [(X, Y)])


def test_a_model_without_a_linear_layer():
    with pytest.raises(ValueError, match=says("model", "nn.Linear")):
        keep_features(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), [])
