"""Rows of a comparison: a loss or method with its own training settings, ``ce(lr=0.01)``, ``sdn(sampler=balanced)``.

Arguments of the loss take precedence over settings: ``recall(momentum=0.1)`` is the momentum of recall loss,
``ce(momentum=0.8)`` that of SGD. Settings in any loss of a sum apply to the whole row; those of a method apply to its
losses too, and to both of its stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from equipoise.expressions import AUTO, Call, Choices, Expression, Sum, Value, expand, is_own, parse
from equipoise.tasks import Task
from equipoise.train.loss_text import is_argument, parse_loss
from equipoise.train.methods import METHODS, option_names, parse_method
from equipoise.train.spec import ROW_SETTINGS, SharedSpec, SpecError

__all__ = ["Row", "expand_rows", "is_plain", "is_same_row", "read_row"]


@dataclass(frozen=True)
class Row:
    """One loss or method with its settings.

    Args:
        expression: the loss or method without the settings.
        settings: pairs of name and value, sorted by name; the comparison provides all others.
    """

    expression: Expression
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def meaning(self) -> object:
        """A value that is equal for equivalent rows, however they are written."""
        expression = self.expression
        return parse_method(str(expression)) if isinstance(expression, Call) else expression, self.settings

    def with_expression(self, text: str) -> Row:
        """A row of another loss with the settings of this row in addition to its own."""
        other = read_row(text)
        return Row(other.expression, tuple(sorted((dict(self.settings) | dict(other.settings)).items())))

    def run_settings(self) -> dict[str, Any]:
        """Settings for ``RunSpec``, including ``loss`` or ``method``."""
        name = "method" if isinstance(self.expression, Call) else "loss"
        return {name: str(self.expression), **{key: _plain(value) for key, value in self.settings}}

    def __str__(self) -> str:
        if isinstance(self.expression, Call):
            return str(_extended(self.expression, self.settings))
        (factor, first), *others = self.expression.terms
        return str(Sum(((factor, _extended(first, self.settings)), *others)))


def read_row(text: str) -> Row:
    """Parse a row without candidates and check its settings.

    >>> row = read_row("recall(momentum=0.1, lr=0.01)")
    >>> str(row.expression), row.settings
    ('recall(momentum=0.1)', (('lr', 0.01),))
    """
    expression = parse(text)
    settings: dict[str, Value] = {}
    if isinstance(expression, Call):
        plain: Expression = _divided(expression, option_names(METHODS[expression.name]), settings)
        parse_method(str(plain))
    else:
        plain = Sum(tuple((factor, _divided_loss(loss, settings)) for factor, loss in expression.terms))
        if plain != parse(AUTO):
            parse_loss(str(plain))
    row = Row(plain, tuple(sorted(settings.items())))
    _check(text, row)
    return row


def expand_rows(text: str) -> list[str]:
    """Expand a text with candidates into rows, checked and in canonical form.

    >>> expand_rows("ce(lr=[0.1, 0.01])"), expand_rows("tau-norm(tau=[0.5, 1])")
    (['ce(lr=0.1)', 'ce(lr=0.01)'], ['tau-norm(tau=0.5)', 'tau-norm(tau=1)'])
    """
    texts = [str(one) for one in expand(parse(text))]
    for single in texts:
        read_row(single)
    return texts


def is_same_row(wanted: str, other: str) -> bool:
    """Whether two texts are the same row; ``"auto"`` as the first matches the default loss of any task.

    >>> is_same_row("auto", "ce"), is_same_row("ce", "ce(lr=0.01)")
    (True, False)
    """
    first, second = read_row(wanted), read_row(other)
    if first.expression == parse(AUTO):
        return is_plain(other) and first.settings == second.settings
    return first.meaning == second.meaning


def is_plain(text: str) -> bool:
    """Whether the loss of a row is the default loss of a task, with any settings."""
    return read_row(text).expression in [parse(task.default_loss) for task in Task]


def _divided_loss(loss: Call, settings: dict[str, Value]) -> Call:
    if is_own(loss.name):  # its function determines its arguments
        return loss
    own = set() if loss.name == AUTO else {key for key, _ in loss.options if is_argument(loss.name, key)}
    return _divided(loss, own, settings)


def _divided(call: Call, own: set[str], settings: dict[str, Value]) -> Call:
    """The call with its own options; training settings among the others are moved to ``settings``."""
    moved = {key: value for key, value in call.options if key in ROW_SETTINGS and key not in own}
    for key, value in moved.items():
        if key in settings and settings[key] != value:
            raise ValueError(f"the losses of a row share its settings, got {key} twice; give it once")
    settings |= moved
    return replace(call, options=tuple(option for option in call.options if option[0] not in moved))


def _extended(call: Call, settings: tuple[tuple[str, Value], ...]) -> Call:
    return replace(call, options=tuple(sorted((*call.options, *settings))))


def _check(text: str, row: Row) -> None:
    """Raise if a setting of a row has an invalid value."""
    for key, value in row.settings:
        if isinstance(value, Choices):
            raise ValueError(f"{key} must be one value, got {value} in {text}; candidates are for equipoise compare")
    try:
        SharedSpec.check({"data": "", **{key: _plain(value) for key, value in row.settings}})
    except SpecError as error:
        raise ValueError(f"{text}: {'; '.join(error.mistakes)}") from None


def _plain(value: Value) -> Any:  # noqa: ANN401
    """A value for ``RunSpec``: calls as text."""
    return str(value) if isinstance(value, Call) else value
