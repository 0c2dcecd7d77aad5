"""The settings of a comparison: shared settings of its runs, and losses, methods and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from equipoise._suggestions import nearest, repeated
from equipoise.catalogue import find
from equipoise.expressions import METHOD_NAMES, canonical, check_loss_names, is_method, list_losses, method_name
from equipoise.train import spec as shared
from equipoise.train.spec import SharedSpec, is_quick

__all__ = ["GROUPS", "CompareSpec"]

GROUPS = ("Comparison", *shared.GROUPS)
"""Headings under which help pages list the settings."""
MOST_SEEDS = 1000
"""Maximum number of seeds, each of which trains every loss."""


def _losses(value: object) -> object:
    """Parse the losses of an option."""
    if not isinstance(value, str):
        return value
    return tuple(list_losses(value))


def _known_loss(text: str, info: ValidationInfo) -> str:
    if is_method(text):
        raise ValueError(
            f"they must be losses, got the method {text}; give it in --methods, losses may stand there too"
        )
    try:
        _check(text, info)
    except ValueError:
        meant = _method_meant(text)
        if not meant:
            raise
        raise ValueError(f"they must be losses, got {text!r}; {meant} Methods are given in --methods") from None
    return canonical(text)


def _check(text: str, info: ValidationInfo) -> None:
    """Raise unless a text is a loss or method with known options."""
    check_loss_names(text)
    if not is_quick(info):
        from equipoise.train.rows import expand_rows

        expand_rows(text)


def _method_meant(text: str) -> str:
    """``did you mean ...?`` if a text is not a loss and its name is similar to a method, otherwise nothing."""
    name = method_name(text)
    try:
        find(name)
    except ValueError:
        return nearest(name, METHOD_NAMES, otherwise="")
    return ""


def _known_method(text: str, info: ValidationInfo) -> str:
    try:
        _check(text, info)
    except ValueError as error:
        if is_method(text):
            raise
        meant = _method_meant(text)
        if meant:
            raise ValueError(f"they must be methods or losses, got {text!r}; {meant}") from None
        raise ValueError(f"they must be methods ({', '.join(METHOD_NAMES)}) or losses: {error}") from None
    return canonical(text)


def _seeds(value: object) -> object:
    """Parse ``3`` as the seeds 0, 1, 2, ``4,7`` as these two, and ``7,`` as one."""
    if isinstance(value, str) and "," in value:
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value.strip()[:20])  # longer ones are far too many as well
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError(
                f"there must be at least one seed, got {value}; give their number, or a list such as 0,1,2"
            )
        _check_few(value)
        return tuple(range(value))
    if isinstance(value, str):
        raise ValueError(f"they must be a number of seeds or a list of them, got {value!r}; for example 3, or 0,1,2")
    return value


def _check_few(seeds: int) -> None:
    if seeds > MOST_SEEDS:
        raise ValueError(
            f"there can be at most {MOST_SEEDS:,} seeds, got {seeds:,}; every loss is trained with each of them: give "
            "fewer, such as 3"
        )


Losses = Annotated[tuple[Annotated[str, AfterValidator(_known_loss)], ...], BeforeValidator(_losses)]
Methods = Annotated[tuple[Annotated[str, AfterValidator(_known_method)], ...], BeforeValidator(_losses)]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], BeforeValidator(_seeds)]


def _setting(default: Any, description: str, **limits: Any) -> Any:  # noqa: ANN401
    return Field(default, description=description, json_schema_extra={"group": "Comparison"}, **limits)


class CompareSpec(SharedSpec):
    """The settings of a comparison.

    >>> spec = CompareSpec(data="digits-lt", losses="ce focal(gamma=[1, 2, 3])", seeds=2)
    >>> spec.losses, spec.seeds
    (('ce', 'focal(gamma=[1, 2, 3])'), (0, 1))
    """

    losses: Losses | None = _setting(
        None,
        "Losses, e.g. 'ce focal(gamma=[1, 2, 3]) ldam(weight=drw) mine.py:function', also with settings of the "
        "training, ce(lr=0.01); None to suggest some from the data.",
    )
    methods: Methods | None = _setting(
        None,
        "Methods to compare, with losses or alone, e.g. 'ce sdn sdn(feature=ce) ldam-drw crt tau-norm oltr(loss=cfl)'.",
    )
    seeds: Seeds = _setting((0, 1, 2), "Number of seeds, or a list of them.")
    baseline: str | None = _setting(
        None, "Loss that the others are compared with; None for cross-entropy, or the first loss."
    )

    @field_validator("devices", "nodes")
    @classmethod
    def _one(cls, number: str | int) -> str | int:
        if str(number) != "1":
            raise ValueError(
                f"every run of a comparison uses one device, got {number}; set the number of parallel runs with --jobs"
            )
        return number

    @field_validator("losses")
    @classmethod
    def _different(cls, losses: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if losses is not None and not losses:
            raise ValueError("there must be at least one loss, got none; omit it to have some suggested from the data")
        if not is_quick(info):
            _check_once("loss", losses or ())
        return losses

    @field_validator("methods")
    @classmethod
    def _new(cls, methods: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if not is_quick(info):
            _check_once("method", (*(info.data.get("losses") or ()), *(methods or ())))
        return methods or None

    @field_validator("seeds")
    @classmethod
    def _once(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds:
            raise ValueError("there must be at least one seed, got none; give their number, or a list such as 0,1,2")
        _check_few(len(seeds))
        twice = repeated(seeds)
        if twice is not None:
            raise ValueError(f"every seed must be given once, got {twice} twice; remove one of them")
        return seeds

    @field_validator("baseline")
    @classmethod
    def _compared(cls, baseline: str | None, info: ValidationInfo) -> str | None:
        compared = (*(info.data.get("losses") or ()), *(info.data.get("methods") or ()))
        known = None if baseline is None else canonical(baseline)
        if known is not None and compared and known not in compared:
            raise ValueError(f"it must be one of {', '.join(compared)}, got {baseline}; write it as there")
        return known

    @property
    def compared(self) -> tuple[str, ...] | None:
        """Losses and methods; None to suggest losses from the data."""
        return (*(self.losses or ()), *(self.methods or ())) or None


def _check_once(what: str, texts: Sequence[str]) -> None:
    """Raise if two texts are equal losses or methods."""
    from equipoise.train.rows import expand_rows, read_row

    seen: dict[str, list[object]] = {}
    for text in texts:
        meant = [read_row(one).meaning for one in expand_rows(text)]
        twin = next((other for other, known in seen.items() if known == meant), None)
        if twin is not None:
            both = f"{text} twice" if twin == text else f"{twin} and {text}"
            raise ValueError(f"every {what} must be given once, got {both}; remove one of them")
        seen[text] = meant
