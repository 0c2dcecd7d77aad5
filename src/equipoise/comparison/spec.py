"""What defines a comparison: what its runs share, and the losses and seeds in which they differ."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from equipoise.train import spec as shared
from equipoise.train.spec import SharedSpec

__all__ = ["GROUPS", "CompareSpec"]

GROUPS = ("Comparison", *shared.GROUPS)
"""Headings under which help pages list the settings."""


def _losses(value: object) -> object:
    """A line of losses as a flag gives it."""
    if not isinstance(value, str):
        return value
    from equipoise.train.loss_text import list_losses

    return tuple(list_losses(value))


def _known_loss(text: str) -> str:
    from equipoise.train.loss_text import expand_loss

    expand_loss(text)
    return text.strip()


def _seeds(value: object) -> object:
    """``3`` is three seeds from 0 on, ``4,7`` these two, ``7,`` one."""
    if isinstance(value, str) and "," in value:
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError(
                f"there must be at least one seed, got {value}; give their number, or a list such as 0,1,2"
            )
        return tuple(range(value))
    return value


Losses = Annotated[tuple[Annotated[str, AfterValidator(_known_loss)], ...], BeforeValidator(_losses)]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], BeforeValidator(_seeds)]


def _setting(default: Any, description: str, **limits: Any) -> Any:  # noqa: ANN401
    return Field(default, description=description, json_schema_extra={"group": "Comparison"}, **limits)


class CompareSpec(SharedSpec):
    """The settings of a comparison.

    >>> spec = CompareSpec(data="digits-lt", losses="ce focal:gamma=1,2,3", seeds=2)
    >>> spec.losses, spec.seeds
    (('ce', 'focal:gamma=1,2,3'), (0, 1))
    """

    losses: Losses | None = _setting(
        None, "Losses, e.g. 'ce focal:gamma=1,2,3 ldam:weight=drw'; None for those that the data suggest."
    )
    seeds: Seeds = _setting((0, 1, 2), "Number of seeds, or a list of them.")
    baseline: str | None = _setting(
        None, "The loss that others are compared with; None for cross-entropy, or the first."
    )

    @field_validator("devices", "nodes")
    @classmethod
    def _one(cls, number: str | int) -> str | int:
        if str(number) != "1":
            raise ValueError(
                f"every run of a comparison has one device, got {number}; several train at a time by --jobs"
            )
        return number

    @field_validator("losses")
    @classmethod
    def _different(cls, losses: tuple[str, ...] | None) -> tuple[str, ...] | None:
        from equipoise.train.loss_text import expand_loss, parse_loss

        if losses is not None and not losses:
            raise ValueError("there must be at least one loss, got none; leave it out to have the data suggest some")
        seen: dict[str, list[Any]] = {}
        for text in losses or ():
            terms = [parse_loss(one) for one in expand_loss(text)]
            twin = next((other for other, known in seen.items() if known == terms), None)
            if twin is not None:
                raise ValueError(f"every loss must be given once, got {twin} and {text}; remove one of them")
            seen[text] = terms
        return losses

    @field_validator("seeds")
    @classmethod
    def _once(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds:
            raise ValueError("there must be at least one seed, got none; give their number, or a list such as 0,1,2")
        twice = {seed for seed in seeds if seeds.count(seed) > 1}
        if twice:
            raise ValueError(f"every seed must be given once, got {min(twice)} twice; remove one of them")
        return seeds

    @field_validator("baseline")
    @classmethod
    def _compared(cls, baseline: str | None, info: ValidationInfo) -> str | None:
        losses = info.data.get("losses")
        if baseline is not None and losses is not None and baseline not in losses:
            raise ValueError(f"it must be one of the losses {', '.join(losses)}, got {baseline}; write it as there")
        return baseline
