"""Modulated attention against a formula written with loops, and as part of a model."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise.heads import ModulatedAttention, insert_attention
from equipoise.models import CifarResNet, find_classifier


def trained_attention(channels, places, **options):
    """Attention whose last convolution is not 0, in float64."""
    torch.manual_seed(0)
    attention = ModulatedAttention(channels, places, **options).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.3)
    return attention


def by_hand(attention, maps):
    """Place by place, as in section 3.3 of Liu et al. (2019) and the published code."""
    result = maps.clone()
    weight = {name: layer.weight.flatten(1) for name, layer in attention.named_children()}
    bias = {name: layer.bias for name, layer in attention.named_children()}
    for n, image in enumerate(maps):
        places = [image[:, i, j] for i in range(image.shape[1]) for j in range(image.shape[2])]
        query, key, value = (
            [weight[name] @ place + bias[name] for place in places] for name in ("query", "key", "value")
        )
        spatial = torch.softmax(weight["spatial"] @ image.reshape(-1) + bias["spatial"], 0)
        for p in range(len(places)):
            shares = torch.softmax(torch.stack([query[p] @ other for other in key]), 0)
            attended = sum(share * one for share, one in zip(shares, value, strict=True))
            i, j = divmod(p, image.shape[2])
            result[n, :, i, j] = places[p] + spatial[p] * (weight["out"] @ attended)
    return result


@pytest.mark.parametrize(("size", "reduction"), [((2, 3), 2), ((4, 4), 1), ((1, 5), 3)])
def test_it_is_the_formula(size, reduction):
    attention = trained_attention(6, size[0] * size[1], reduction=reduction)
    maps = torch.randn(3, 6, *size, dtype=torch.float64)
    assert_close(attention(maps), by_hand(attention, maps), rtol=1e-12, atol=1e-12)
    assert attention.query.out_channels == 6 // reduction


def test_every_parameter_has_a_gradient_after_the_first_step():
    attention = ModulatedAttention(4, 9)
    optimizer = torch.optim.SGD(attention.parameters(), lr=0.5)
    maps = torch.randn(8, 4, 3, 3)
    for _ in range(2):
        optimizer.zero_grad()
        (attention(maps) - 1).square().mean().backward()
        optimizer.step()
    assert all(bool(parameter.grad.any()) for name, parameter in attention.named_parameters() if name != "key.bias")
    assert not torch.equal(attention(maps), maps)


def test_outputs_of_a_model_are_unchanged_at_first():
    model = CifarResNet(5, width=4, depth=8).eval()
    images = torch.randn(4, 3, 16, 16)
    before = model(images)
    attention = insert_attention(model, "layer3", channels=16, places=16)
    assert torch.equal(model(images), before)
    assert find_classifier(model).name == "fc"
    nn.init.normal_(attention.out.weight)
    assert not torch.allclose(model(images), before)
    assert any(attention is module for module in model.modules())
    assert not attention.training


def test_a_state_brings_its_size():
    attention, other = trained_attention(6, 12), ModulatedAttention(2, 1).double()
    other.load_state_dict(attention.state_dict())
    maps = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    assert torch.equal(other(maps), attention(maps))
    same = ModulatedAttention(6, 12)
    kept = same.spatial
    same.load_state_dict(attention.state_dict())
    assert same.spatial is kept


def test_bad_input():
    attention = ModulatedAttention(4, 9)
    with pytest.raises(
        ValueError, match=r"maps must be \(N, 4, h, w\) with 9 places, got \(2, 4, 4, 4\); use one size"
    ):
        attention(torch.zeros(2, 4, 4, 4))
    with pytest.raises(ValueError, match="channels must be an integer of at least 2, got 1"):
        ModulatedAttention(1, 9)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="after must name a module of Sequential, got 'layer4'; it has 0, 1, 2 and"):
        insert_attention(model, "layer4", 4, 9)
