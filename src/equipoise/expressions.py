"""Losses and methods as text: ``focal(gamma=3)``, ``ce + 0.5 * dice(per_image=True)``, ``crt(loss=focal(gamma=1))``.

::

    LOSS   NAME, NAME(KEY=VALUE, ...)         a loss of ``equipoise losses``, or FILE.py:FUNCTION for user code
           NUMBER * LOSS, LOSS + LOSS         a weighted sum; brackets group losses
    METHOD NAME, NAME(KEY=VALUE, ...)         a name of ``METHOD_NAMES``; some of its arguments are losses
    VALUE  3, -0.5, 1e-3, True, False, None   as in Python; also true, false, none
           published, batch-mean, "any text"  a string
           (1, 2, 5), (0,)                    several numbers
           linear(5, 1), drw(0.9)             a schedule over the training, or a weighting rule
           [1, 2, 3]                          candidates, also allowed for NUMBER in a sum

The text is a restricted Python expression. ``parse`` reads it with ``ast`` into a frozen value and evaluates nothing;
``str`` formats the value in its canonical form, which is the same for equivalent texts. Names may contain hyphens:
there is no subtraction. Paths with spaces or other characters are quoted: ``"my dir/mine.py:Tail"(k=1)``.

The syntax of version 0.1 is supported too: ``focal:gamma=3:label_smoothing=0.1``, ``ce+0.5*dice:per_image=true``,
candidates ``focal:gamma=1,2,3``, a loss inside a method in brackets, ``oltr:loss=(focal:gamma=2)``. This module does
not import torch: ``equipoise.train.loss_text`` and ``equipoise.train.methods`` check the arguments and build modules.
"""

from __future__ import annotations

import ast
import itertools
import keyword
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from equipoise._suggestions import nearest, shortened
from equipoise.catalogue import find

__all__ = [
    "AUTO",
    "METHOD_NAMES",
    "Call",
    "Choices",
    "Expression",
    "Sum",
    "Value",
    "calls_of",
    "canonical",
    "check_loss_names",
    "check_method_name",
    "compact",
    "expand",
    "is_method",
    "is_own",
    "list_losses",
    "method_name",
    "parse",
    "same",
]

METHOD_NAMES = (
    *("none", "sdn", "ldam-drw", "bbn", "crt", "lws", "tau-norm", "ncm"),
    *("oltr", "oltr-attention", "lifted", "range"),
)
"""Names of ``equipoise.train.methods.METHODS``."""
LOSS_ARGUMENTS = ("backbone", "classifier", "feature", "loss")
"""Arguments of methods that are losses."""
AUTO = "auto"
"""Name of the default loss of the task, for the first stage of methods; not allowed in a list of losses."""
RULE_AND_LOSS = "inverse"
"""A weighting rule that is also the name of a loss; in a list of candidates it is the rule."""
MOST_CANDIDATES = 1000
"""Maximum number of losses that lists of candidates may expand to."""
LONGEST, DEEPEST = 20_000, 40
"""Maximum number of characters of a text, and maximum depth of its expression."""

_QUOTED = r"\"[^\"]*\"|'[^']*'"
_OWN = r"(?<![^\s\"'()\[\],*=+:])[^\s\"'()\[\],*=+:]+\.py(?::[^\W\d]\w*)?(?!\w)"
_WORD = r"(?<![\w.])[^\W\d]\w*(?:-\w+)*"
_HYPHEN = "\u00b7"  # replaces hyphens in names while Python parses them; Python allows it in names
_PLUS = r"(?<![\d.][eE])\+"  # not the plus of 1e+5

Value: TypeAlias = "bool | float | str | Call | Sum | Choices | tuple[Value, ...] | None"
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Call:
    """``name(arguments, key=value)``; options are sorted by their keys."""

    name: str
    arguments: tuple[Value, ...] = ()
    options: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        name = self.name if re.fullmatch(f"{_OWN}|{_WORD}", self.name) else _quoted(self.name)
        inside = [*map(_shown, self.arguments), *(f"{key}={_shown(value)}" for key, value in self.options)]
        return f"{name}({', '.join(inside)})" if inside else name


@dataclass(frozen=True)
class Sum:
    """Losses, each with its factor: ``ce + 0.5 * dice``. A single loss is a sum of one term."""

    terms: tuple[tuple[Value, Call], ...]

    def __str__(self) -> str:
        return " + ".join(str(loss) if factor == 1 else f"{_shown(factor)} * {loss}" for factor, loss in self.terms)


@dataclass(frozen=True)
class Choices:
    """Candidates, ``[1, 2, 3]``."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(_shown, self.values))}]"


Expression: TypeAlias = "Sum | Call"
"""A parsed text: losses, or a method."""


def _shown(value: Value) -> str:
    if isinstance(value, str):
        plain = re.fullmatch(_WORD, value, re.ASCII) and value.lower() not in _CONSTANTS
        return value if plain and not keyword.iskeyword(value) else _quoted(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))}{',' * (len(value) == 1)})"
    return str(value)


def _quoted(text: str) -> str:
    """The text in quotes, without escapes, so that backslashes of paths are unchanged."""
    return f"'{text}'" if '"' in text else f'"{text}"'


# ------------------------------------------------------------------------------------------------------------- names


def is_own(name: str) -> bool:
    """Whether a name is, or looks like, ``FILE.py:NAME``."""
    return ".py" in name


def is_method(text: str) -> bool:
    """Whether a text is a method, not a loss."""
    return method_name(text) in METHOD_NAMES


def method_name(text: str) -> str:
    """The first name of a text, in the spelling of ``METHOD_NAMES``.

    >>> method_name("Tau_Norm(tau=1)"), method_name("sdn:feature=ce")
    ('tau-norm', 'sdn')
    """
    return re.split(r"[:(]", text, maxsplit=1)[0].strip().lower().replace("_", "-")


def check_method_name(text: str) -> None:
    """Raise if the method is unknown."""
    if not is_method(text):
        name = re.split(r"[:(]", text, maxsplit=1)[0]
        raise ValueError(f"a method must have a known name, got {name!r}; {nearest(name, METHOD_NAMES)}")


def check_loss_names(text: str) -> None:
    """Raise if a loss of a text is unknown, or the file of its user code does not exist."""
    for call in calls_of(parse(text)):
        if is_own(call.name):
            _check_own(call.name)
        elif call.name == AUTO:
            find(call.name)  # raises and lists the known names


def calls_of(value: Value) -> Iterator[Call]:
    """All losses of an expression, including those inside a method."""
    if isinstance(value, Sum):
        yield from (loss for _, loss in value.terms)
    elif isinstance(value, Choices):
        yield from itertools.chain.from_iterable(map(calls_of, value.values))
    elif isinstance(value, Call):
        yield from itertools.chain.from_iterable(calls_of(inner) for key, inner in value.options if _is_loss(key))


def _is_loss(key: str) -> bool:
    return key in LOSS_ARGUMENTS


def _check_own(name: str) -> None:
    path, _, inside = name.rpartition(":")
    if not path.endswith(".py") or not inside.isidentifier():
        raise ValueError(
            f"a loss in user code must be FILE.py:NAME, got {name!r}; append the class or function that returns it"
        )
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"{name}: the file must exist, found none at {file.resolve()}; check the path")


# ------------------------------------------------------------------------------------------------------------ values


def canonical(text: str) -> str:
    """Canonical form, the same for equivalent texts; anything that is neither loss nor method is unchanged.

    >>> canonical("FocalLoss:gamma=3.0:label-smoothing=0.1"), canonical("auto")
    ('focal(gamma=3, label_smoothing=0.1)', 'auto')
    """
    try:
        return str(parse(text))
    except ValueError:
        return text


def compact(text: str) -> str:
    """The text as a folder name, compatible with version 0.1 unless it contains nested brackets.

    >>> compact("focal(gamma=3, label_smoothing=0.1)"), compact("ce + 0.5 * dice")
    ('focal-gamma=3-label_smoothing=0.1', 'ce+0.5*dice')
    """
    if text != canonical(text):
        return text
    text = re.sub(r"=(True|False|None)\b", lambda match: match[0].lower(), re.sub(" ([+*]) ", r"\1", text))
    simple = re.fullmatch(r"([^()=]+)\(([^()]*)\)", text)
    return text if simple is None else f"{simple[1]}-{simple[2].replace(', ', '-')}"


def same(one: object, other: object) -> bool:
    """Whether two settings are equal or equivalent texts."""
    return one == other or (isinstance(one, str) and isinstance(other, str) and canonical(one) == canonical(other))


def expand(value: Value) -> list[Value]:
    """All values that a value with candidates expands to.

    >>> [str(one) for one in expand(parse("focal(gamma=[1, 3], label_smoothing=[0, 0.1])"))]
    ['focal(gamma=1, label_smoothing=0)', 'focal(gamma=1, label_smoothing=0.1)',
     'focal(gamma=3, label_smoothing=0)', 'focal(gamma=3, label_smoothing=0.1)']
    """
    if isinstance(value, Choices):
        return list(dict.fromkeys(one for choice in value.values for one in expand(choice)))
    if isinstance(value, tuple):
        return [*_combinations([*map(expand, value)])]
    if isinstance(value, Call):
        keys = [key for key, _ in value.options]
        ways = _combinations([expand(value.arguments), *(expand(one) for _, one in value.options)])
        return [Call(value.name, first, tuple(zip(keys, rest, strict=True))) for first, *rest in ways]  # type: ignore[arg-type]
    if isinstance(value, Sum):
        return [Sum(terms) for terms in _combinations([expand(term) for term in value.terms])]  # type: ignore[arg-type]
    return [value]


def _combinations(choices: Sequence[Sequence[_Item]]) -> Iterator[tuple[_Item, ...]]:
    """Cartesian product of the candidates; raise if it is too large to train."""
    count = math.prod(map(len, choices))
    if count > MOST_CANDIDATES:
        raise ValueError(
            f"lists of candidates can mean at most {MOST_CANDIDATES:,} losses, got {count:,} combinations; list fewer"
        )
    return itertools.product(*choices)


# ----------------------------------------------------------------------------------------------------------- reading

_CONSTANTS = {"true": True, "false": False, "none": None}


def parse(text: str) -> Expression:
    """Parse a text; names of losses must be known, arguments are not checked.

    >>> parse("focal:gamma=3.0") == parse("FocalLoss( gamma = 3 )")
    True
    >>> str(parse("0.5 * (ce + dice)"))
    '0.5 * ce + 0.5 * dice'
    """
    tree, source = _tree(text)
    reader = _Reader(text, source)
    name = _name(tree.func if isinstance(tree, ast.Call) else tree)
    return reader.call(tree, name) if name is not None and is_method(name) else Sum(tuple(reader.terms(tree)))


def _tree(text: str) -> tuple[ast.expr, str]:
    """The syntax tree and its source, in which names have no hyphens."""
    if len(text) > LONGEST:
        raise ValueError(f"a loss must have at most {LONGEST:,} characters, got {len(text):,}; write a shorter one")
    if not text.strip():
        find(text)  # raises and lists the known names
    shown = shortened(text)
    _check_brackets(text, shown)
    source = re.sub(f"{_QUOTED}|{_OWN}|{_WORD}", _readable, _renewed(re.sub(r"\s", " ", text))).strip()
    try:
        if "#" in re.sub(_QUOTED, "", source):
            raise SyntaxError("'#' has no meaning")
        tree = ast.parse(source, mode="eval").body
        _check_depth(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        deep = isinstance(error, (RecursionError, MemoryError))
        why = "it nests too deeply" if deep else error.msg if isinstance(error, SyntaxError) else "that is no text"
        place = error.offset if isinstance(error, SyntaxError) else None
        near = f" at {shortened(_plain(source[place - 1 :]), 20)!r}" if place and source[place - 1 :] else ""
        raise ValueError(
            f"a loss must be written as focal(gamma=3) or ce + 0.5 * dice, got {shown!r}: {why}{near}"
        ) from None
    return tree, source


def _readable(match: re.Match[str]) -> str:
    """A name, a path or a quoted text in a form that Python can parse."""
    word = match[0]
    if word[0] in "\"'":
        return repr(word[1:-1])
    if ".py" in word:
        return repr(word)
    if keyword.iskeyword(word) and word.lower() not in _CONSTANTS:
        return repr(word)
    return word.replace("-", _HYPHEN)


def _plain(source: str) -> str:
    return source.replace(_HYPHEN, "-")


def _check_brackets(text: str, shown: str) -> None:
    opened: list[str] = []
    for match in re.finditer(rf"{_QUOTED}|[()\[\]]", text):
        if match[0] in "([":
            opened.append(match[0])
        elif match[0] in ")]" and (not opened or opened.pop() + match[0] not in ("()", "[]")):
            raise ValueError(
                f"a loss must have an opening bracket for every closing one, got {shown!r}; check the brackets"
            )
        if len(opened) > DEEPEST:
            raise ValueError(f"a loss can have at most {DEEPEST} nested brackets, got {shown!r}")
    if opened:
        raise ValueError(
            f"a loss or method must have a closing bracket for every opening one, got {shown!r}; "
            "write e.g. crt(loss=focal)"
        )


def _check_depth(tree: ast.expr) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(3 * DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise RecursionError


def _name(node: ast.expr) -> str | None:
    """A name without arguments, otherwise None."""
    if isinstance(node, ast.Name):
        return _plain(node.id)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@dataclass(frozen=True)
class _Reader:
    """Converts a syntax tree to values."""

    text: str
    source: str

    def refuse(self, node: ast.AST, why: str) -> ValueError:
        piece = shortened(_plain(ast.get_source_segment(self.source, node) or self.source))
        context = "" if piece == self.text.strip() else f" in {shortened(self.text)!r}"
        return ValueError(f"{why}, got {piece!r}{context}")

    def terms(self, node: ast.expr) -> Iterator[tuple[Value, Call]]:
        """The losses of a sum with their factors."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from self.terms(node.left)
            yield from self.terms(node.right)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            first, second = (node.right, node.left) if _is_number(node.right) else (node.left, node.right)
            factor = self.value(first)
            if not _is_number(first):
                raise self.refuse(first, "a factor must be a number such as 0.5 in 0.5 * dice")
            for inner, loss in self.terms(second):
                yield self.product(node, factor, inner), loss
        else:
            call = node.func if isinstance(node, ast.Call) else node
            name = _name(call)
            if name is None:
                raise self.refuse(node, "a loss must be a name with arguments, as in focal(gamma=3), or a sum of these")
            yield 1, self.call(node, name if is_own(name) or name == AUTO else find(name).text)

    def product(self, node: ast.expr, one: Value, other: Value) -> Value:
        if isinstance(one, (int, float)) and isinstance(other, (int, float)):
            return _number(one * other)
        if 1 not in (one, other):
            raise self.refuse(node, "a loss must have one list of factors")
        return one if other == 1 else other

    def call(self, node: ast.expr, name: str) -> Call:
        """A loss or method with its options."""
        in_user_code, method = is_own(name), is_method(name)
        name = method_name(name) if method else name
        options: dict[str, Value] = {}
        if isinstance(node, ast.Call):
            if node.args:
                raise self.refuse(node.args[0], f"{name} must have keyword arguments only, as in focal(gamma=3)")
            for one in node.keywords:
                key = "" if one.arg is None else _plain(one.arg).replace("-", "_")
                if not key:
                    raise self.refuse(one.value, f"{name} must have keyword arguments only, as in focal(gamma=3)")
                if key in options:
                    raise self.refuse(node, f"{name} must have every argument once, found {key} twice")
                value = self.loss(one.value) if method and _is_loss(key) else self.value(one.value, exact=in_user_code)
                options[key] = _rule(value) if key == "weight" else value
        return Call(name, (), tuple(sorted(options.items())))

    def loss(self, node: ast.expr) -> Value:
        """An argument of a method that is a loss, or candidates for it."""
        if isinstance(node, ast.List) and node.elts:
            return Choices(tuple(map(self.loss, node.elts)))
        return AUTO if _name(node) == AUTO else Sum(tuple(self.terms(node)))

    def value(self, node: ast.expr, *, exact: bool = False) -> Value:
        """A value; ``exact`` distinguishes 3.0 from 3, which matters for user code."""
        if isinstance(node, (ast.List, ast.Tuple)) and (node.elts or isinstance(node, ast.Tuple)):
            values = tuple(self.value(one, exact=exact) for one in node.elts)
            return Choices(values) if isinstance(node, ast.List) else values
        if isinstance(node, ast.Call) and (name := _name(node.func)) is not None and not node.keywords:
            if not node.args:
                return name.lower()
            return Call(name.lower(), tuple(self.value(one, exact=exact) for one in node.args))
        if isinstance(node, ast.Name):
            return _CONSTANTS.get(_plain(node.id).lower(), _plain(node.id))
        sign = 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)) and _is_number(node.operand):
            sign = -1 if isinstance(node.op, ast.USub) else 1
            node = node.operand
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            if not math.isfinite(node.value):
                raise self.refuse(node, "a number must be finite")
            return sign * node.value if exact else _number(sign * node.value)
        if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, (bool, str))):
            return node.value
        raise self.refuse(node, "a value must be a number, a name, (1, 2), linear(5, 1), or candidates such as [1, 2]")


def _is_number(node: ast.expr) -> bool:
    """Whether a node is a number, or candidates for one."""
    if isinstance(node, ast.List):
        return bool(node.elts) and all(map(_is_number, node.elts))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, (ast.USub, ast.UAdd)) and isinstance(node.operand, ast.Constant)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _number(value: float) -> float:
    """3 for 3.0, which are equivalent for a loss."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def _rule(value: Value) -> Value:
    """A weighting rule, or candidates for one, in the spelling of ``WEIGHTS`` of ``equipoise.train.loss_text``."""
    if isinstance(value, Choices):
        return Choices(tuple(map(_rule, value.values)))
    if isinstance(value, Call):
        return Call(_rule_name(value.name), value.arguments)
    return _rule_name(value) if isinstance(value, str) else value


def _rule_name(name: str) -> str:
    return name.lower().replace("_", "-")


# ------------------------------------------------------------------------------------------- the syntax of version 0.1


def _renewed(text: str) -> str:
    """A text with the options of version 0.1 in brackets; other texts are unchanged.

    >>> _renewed("focal:gamma=1,2:label_smoothing=0.1+0.1,1*dice:classes=(0)")
    'focal(gamma=[1, 2], label_smoothing=0.1) + [0.1, 1]*dice(classes=(0,))'
    """
    if ":" not in text and not ("," in text and "*" in text):
        return text
    return " + ".join(map(_renewed_term, [text] if is_method(text) else _split(text, _PLUS)))


def _renewed_term(term: str) -> str:
    head, *options = _split(term, ":")
    *factors, name = _split(head, r"\*")
    if name.endswith(".py") and options:
        inside, bracket, rest = options.pop(0).partition("(")
        name = _quoted(f"{name}:{inside.strip()}") + bracket + rest
    written = [*(_listed(factor) for factor in factors), name]
    pairs = [option.partition("=") for option in options]
    if not all(equals for _, equals, _ in pairs):
        wrong = next(key for key, equals, _ in pairs if not equals)
        raise ValueError(f"{name} must have options of the form key=value, got {wrong!r}; write e.g. focal(gamma=3)")
    inside = ", ".join(f"{key.strip()}={_listed(value, is_method(name))}" for key, _, value in pairs)
    return "*".join(written) + (f"({inside})" if options else "")


def _listed(values: str, losses: bool = False) -> str:
    """The values of an option, candidates with commas in square brackets."""
    first, *others = (_renewed_value(value, losses) for value in _split(values, ","))
    return f"[{', '.join([first, *others])}]" if others else first


def _renewed_value(value: str, losses: bool) -> str:
    """A value; in version 0.1 brackets around a single value made it a tuple."""
    if value.startswith("(") and value.endswith(")") and ":" in value:
        return f"({_renewed(value[1:-1])})"
    if losses:
        return value
    value = re.sub(r"(?<![\w-])\(([^()\[\],]+)\)", r"(\1,)", value)
    alone = value.startswith("((") and value.endswith("))") and len(_split(value[1:-1], ",")) == 1
    return f"{value[:-1]},)" if alone else value


def _split(text: str, separator: str) -> list[str]:
    """Split a text at separators outside of brackets and quotes.

    >>> _split("1,(2,3)", ",")
    ['1', '(2,3)']
    """
    parts, start, depth = [], 0, 0
    for match in re.finditer(rf"{_QUOTED}|[()\[\]]|{separator}", text):
        if match[0] in ("(", "["):
            depth += 1
        elif match[0] in (")", "]"):
            depth -= 1
        elif depth == 0 and match[0][0] not in "\"'":
            parts.append(text[start : match.start()].strip())
            start = match.end()
    return [*parts, text[start:].strip()]


# ------------------------------------------------------------------------------------------------------------- lines


def list_losses(line: str) -> list[str]:
    """The losses and methods of a line, separated by spaces or commas; they are not checked.

    In the syntax of version 0.1 a comma after an option continues the values of that option, unless the name of a loss
    or method follows.

    >>> list_losses("ce, focal(gamma=[1, 2]) ce + 0.5 * dice focal:gamma=1,2,3 ldam:weight=drw,recall")
    ['ce', 'focal(gamma=[1, 2])', 'ce+0.5*dice', 'focal:gamma=1,2,3', 'ldam:weight=drw', 'recall']
    """
    line = re.sub(r"\s+", " ", line)
    together = re.sub(rf"({_QUOTED})| ?([+*]) ?| (?=\()", lambda match: match[1] or match[2] or "", line)
    losses: list[str] = []
    for words in _split(together, " "):
        first, *others = _split(words, ",")
        losses.append(first)
        for part in filter(None, others):  # a comma and a space
            if len(_split(losses[-1], "=")) > 1 and not _begins_anew(part):
                losses[-1] += f",{part}"
            else:
                losses.append(part)
    return [part for part in losses if part]


def _begins_anew(part: str) -> bool:
    """Whether a part of a list is a loss or method, not a value."""
    if is_method(part) or re.match(r"[^:=(]*\.py:", part):
        return True
    name = re.match(r"(?:[^*]*\*)?([A-Za-z][\w-]*)", part)
    if name is None or name[1] == RULE_AND_LOSS:
        return False
    try:
        find(name[1])
    except ValueError:
        return False
    return True
