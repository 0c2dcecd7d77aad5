"""Modulated attention on the feature maps of a model (Liu et al. 2019, section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from equipoise._checks import check_whole

__all__ = ["ModulatedAttention", "insert_attention"]


class ModulatedAttention(nn.Module):
    r"""Feature maps plus what a self-attention adds, weighted by place.

    .. math::
        f^{att} = f + MA(f) \otimes SA(f), \quad
        SA(f) = W_o \, \mathrm{softmax}(\theta(f)^\top \phi(f)) \, g(f), \quad
        MA(f) = \mathrm{softmax}(W_s \, \mathrm{vec}(f))

    :math:`\theta`, :math:`\phi` and g are 1x1 convolutions to D / ``reduction`` channels, and MA has one weight per
    place, which sum to 1. As in the published code :math:`W_o` starts at 0, so that the maps are unchanged at first.
    All maps must have one size, because :math:`W_s` has a row and D columns per place. Loading a state gives the module
    the size of that state.

    Args:
        channels: D.
        places: h w.
        reduction: divisor of the channels inside.

    Shape: (N, D, h, w) to the same.

    >>> import torch
    >>> maps = torch.randn(2, 8, 3, 3)
    >>> torch.equal(ModulatedAttention(8, places=9)(maps), maps)
    True
    """

    def __init__(self, channels: int, places: int, *, reduction: int = 2) -> None:
        super().__init__()
        self.reduction = check_whole("reduction", reduction, low=1)
        self._build(check_whole("channels", channels, low=reduction), check_whole("places", places, low=1))

    def _build(self, channels: int, places: int) -> None:
        inside = channels // self.reduction
        self.query, self.key, self.value = (nn.Conv2d(channels, inside, 1) for _ in range(3))
        for convolution in (self.query, self.key, self.value):
            nn.init.kaiming_normal_(convolution.weight)
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]  # a convolution with a bias
        self.out = nn.Conv2d(inside, channels, 1, bias=False)
        nn.init.zeros_(self.out.weight)
        self.spatial = nn.Linear(places * channels, places)

    def forward(self, maps: Tensor) -> Tensor:
        """The maps after the attention."""
        if maps.ndim != 4 or maps[0].numel() != self.spatial.in_features:
            channels, places = self.query.in_channels, self.spatial.out_features
            raise ValueError(
                f"maps must be (N, {channels}, h, w) with {places} places, got {tuple(maps.shape)}; use one size of "
                "images, the one that the attention was made for"
            )
        query, key, value = (layer(maps).flatten(2) for layer in (self.query, self.key, self.value))  # (N, d, h w)
        attended = value @ (query.mT @ key).softmax(2).mT
        added = self.out(attended.unflatten(2, maps.shape[2:]))
        weights = self.spatial(maps.flatten(1)).softmax(1).unflatten(1, (1, *maps.shape[2:]))
        modulated: Tensor = maps + weights * added
        return modulated

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:  # noqa: ANN401
        weight = state_dict.get(f"{prefix}spatial.weight")
        if isinstance(weight, Tensor) and weight.ndim == 2 and weight.shape != self.spatial.weight.shape:
            places, entries = weight.shape
            mine = self.spatial.weight
            self._build(entries // places, places)
            self.to(mine.device, mine.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)


def insert_attention(model: nn.Module, after: str, channels: int, places: int) -> ModulatedAttention:
    """Put modulated attention behind a module of a model, in place; return the attention.

    Args:
        model: the model; its outputs are unchanged until the attention is trained.
        after: qualified name of the module, whose output are the maps, e.g. ``"layer4"`` of a ResNet.
        channels: D of the maps.
        places: h w of the maps.

    >>> from equipoise.models import build_model
    >>> model = build_model("resnet32", num_classes=10, input_shape=(3, 32, 32))
    >>> insert_attention(model, "layer3", channels=64, places=64).spatial.out_features
    64
    """
    inner = module_named(model, after)
    parent, _, name = after.rpartition(".")
    attention = ModulatedAttention(channels, places)
    weight = next(inner.parameters(), None)
    if weight is not None:
        attention.to(weight.device, weight.dtype)
    setattr(model.get_submodule(parent), name, nn.Sequential(inner, attention.train(inner.training)))
    return attention


def module_named(model: nn.Module, name: str) -> nn.Module:
    """The module with a qualified name; the error lists the modules that the model has."""
    known: dict[str, nn.Module] = dict(model.named_modules())
    if not name or name not in known:
        raise ValueError(
            f"after must name a module of {type(model).__name__}, got {name!r}; it has "
            f"{', '.join(child for child, _ in model.named_children())} and those inside"
        )
    return known[name]
