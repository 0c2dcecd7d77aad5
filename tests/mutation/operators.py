"""The mutants of a source file: each is one small change, such as a programmer makes by mistake.

A mutant replaces the text of one node of the syntax tree, so the other lines keep their numbers. What computes nothing
is left alone: docstrings and other text, annotations, decorators, error messages, warnings, ``__repr__``. So is what
runs only on other devices than the CPU, with Triton, or with several processes, where no mutant is run.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["Mutant", "mutants"]

OPERATORS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
FUNCTIONS = (("max", "min"), ("all", "any"))
METHODS = (
    *FUNCTIONS,
    ("amax", "amin"),
    ("argmax", "argmin"),
    ("ceil", "floor"),
    ("cos", "sin"),
    ("exp", "expm1"),
    ("log", "log1p"),
    ("maximum", "minimum"),
    ("mean", "sum"),
    ("ones", "zeros"),
    ("ones_like", "zeros_like"),
)
DROPPED_METHODS = {"abs", "clamp", "cumsum", "detach", "double", "exp", "flip", "log", "neg", "sqrt", "square"}
MODULES = {"F", "math", "np", "torch"}
IGNORED_KEYWORDS = {"device", "memory_format", "non_blocking", "stacklevel", "strict"}
IGNORED_FUNCTIONS = {"__repr__", "__str__", "extra_repr"}
IGNORED_CALLS = {"TypeVar", "cast", "isinstance", "warn"}
IGNORED_FIELDS = {"annotation", "decorator_list", "returns"}

Change = tuple[ast.AST, int, int, str]  # node, and the bytes from start to end that become other text


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Args:
        module: the file, relative to ``src/equipoise``.
        line: number of the line that the changed node begins in, from 1.
        text: that line, stripped.
        before: source of the node.
        after: source that replaces it.
        start: first byte of the node in the file.
        occurrence: number among the mutants of the file that read alike, from 0.
    """

    module: str
    line: int
    text: str
    before: str
    after: str
    start: int
    occurrence: int

    def apply(self, source: bytes) -> bytes:
        """The source of the mutated file."""
        return source[: self.start] + self.after.encode() + source[self.start + len(self.before.encode()) :]

    def rank(self, seed: int) -> str:
        """Random key that does not change while the line reads the same, so a sample stays comparable."""
        parts = (seed, self.module, self.text, self.before, self.after, self.occurrence)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def mutants(module: str, source: bytes) -> list[Mutant]:
    """Every mutant of a file, by line."""
    lines = source.splitlines(keepends=True)
    offsets = _Offsets(source, list(accumulate(map(len, lines), initial=0)))
    made: list[Mutant] = []
    alike: Counter[tuple[str, str, str]] = Counter()
    for node, start, end, new in sorted(offsets.changes(ast.parse(source)), key=lambda change: change[0].lineno):
        first, last = offsets.start(node), offsets.end(node)
        text = lines[node.lineno - 1].decode().strip()
        before = source[first:last].decode()
        after = source[first:start].decode() + new + source[end:last].decode()
        made.append(Mutant(module, node.lineno, text, before, after, first, alike[text, before, after]))
        alike[text, before, after] += 1
    return made


@dataclass
class _Offsets:
    """A source with the offsets of its lines, in bytes as the columns of the syntax tree are."""

    source: bytes
    lines: list[int]

    def start(self, node: ast.AST) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self.lines[node.end_lineno - 1] + node.end_col_offset

    def changes(self, tree: ast.AST) -> Iterator[Change]:
        for node in _computing(tree):
            match node:
                case ast.Compare():
                    yield from self._operators(node, [node.left, *node.comparators], node.ops)
                case ast.BoolOp():
                    yield from self._operators(node, node.values, [node.op] * len(node.values))
                case ast.BinOp():
                    yield from self._operators(node, [node.left, node.right], [node.op])
                case ast.AugAssign():
                    yield from self._operators(node, [node.target, node.value], [node.op])
                case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
                    yield self._whole(node, f"-{value + 1}")  # another dimension, another element from the end
                case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
                    start = self.start(node)
                    yield node, start, start + (4 if isinstance(node.op, ast.Not) else 1), ""
                case ast.Constant(value=bool() as value):
                    yield self._whole(node, repr(not value))
                case ast.Constant(value=int() as value):
                    yield self._whole(node, repr(value + 1))
                case ast.Constant(value=float() as value):
                    yield self._whole(node, repr(2.0 * value or 1.0))
                case ast.If(test=ast.Name() | ast.Attribute() | ast.Call() as test):
                    yield test, self.start(test), self.start(test), "not "
                case ast.IfExp(test=ast.Name() | ast.Attribute() | ast.Call() as test):
                    yield test, self.start(test), self.start(test), "not "
                case ast.Expr(value=ast.Call()):
                    yield self._whole(node, "pass")
                case ast.Call():
                    yield from self._call(node)

    def _whole(self, node: ast.AST, new: str) -> Change:
        return node, self.start(node), self.end(node), new

    def _operators(self, node: ast.AST, operands: list[ast.expr], operators: list[ast.AST]) -> Iterator[Change]:
        for left, right, operator in zip(operands, operands[1:], operators, strict=False):
            if type(operator) in OPERATORS:
                start, end = self.end(left), self.start(right)
                yield node, start, end, self.source[start:end].decode().replace(*OPERATORS[type(operator)], 1)

    def _call(self, node: ast.Call) -> Iterator[Change]:
        function, name = node.func, _name(node)
        for pair in METHODS if isinstance(function, ast.Attribute) else FUNCTIONS:
            if name in pair:
                yield function, self.end(function) - len(name), self.end(function), pair[pair[0] == name]
        if name in DROPPED_METHODS and isinstance(function, ast.Attribute) and not _is_module(function.value):
            yield node, self.source.rindex(b".", 0, self.end(function) - len(name)), self.end(node), ""
        arguments = [*node.args, *node.keywords]
        for index, argument in enumerate(arguments):
            if isinstance(argument, ast.keyword) and argument.arg and argument.arg not in IGNORED_KEYWORDS:
                if index:
                    yield node, self.end(arguments[index - 1]), self.end(argument), ""
                elif len(arguments) > 1:
                    yield node, self.start(argument), self.start(arguments[1]), ""
                else:
                    yield node, self.start(argument), self.end(argument), ""


def _computing(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute."""
    elsewhere = _elsewhere(tree)
    for field, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if (
                isinstance(node, ast.AST)
                and field not in IGNORED_FIELDS
                and node not in elsewhere
                and not _is_ignored(node)
            ):
                yield node
                if not (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)):
                    yield from _computing(node)


def _elsewhere(node: ast.AST) -> list[ast.AST]:
    """Parts of a node that do not run on the CPU in one process: the condition that says so, and what depends on it."""
    if isinstance(node, ast.BoolOp):
        return [value for value in node.values if _device(value)]
    if isinstance(node, ast.FunctionDef):
        returned = [index for index, statement in enumerate(node.body, start=1) if _returns_on_cpu(statement)]
        return node.body[returned[0] :] if returned else []
    if isinstance(node, ast.arguments):
        names = node.args[len(node.args) - len(node.defaults) :] + node.kwonlyargs
        defaults = zip(names, node.defaults + node.kw_defaults, strict=True)
        return [default for name, default in defaults if name.arg == "sync" and default]
    if not isinstance(node, ast.If | ast.IfExp):
        return []
    body, other = ([part] if isinstance(part, ast.expr) else part for part in (node.body, node.orelse))
    if device := _device(node.test):
        is_cpu = (device == "cpu") == isinstance(node.test.ops[0], ast.Eq)
        return [node.test, *(other if is_cpu else body)]
    conditions = (
        node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) else [node.test]
    )
    return [node.test, *body] if any(map(_needs_more, conditions)) else []


def _device(node: ast.AST) -> str:
    """``"cpu"`` of ``x.device.type == "cpu"`` and ``x.device.type != "cpu"``."""
    match node:
        case ast.Compare(ast.Attribute(ast.Attribute(attr="device"), "type"), [_], [ast.Constant(str() as device)]):
            return device
    return ""


def _returns_on_cpu(node: ast.stmt) -> bool:
    match node:
        case ast.If(ast.Compare(ops=[ast.Eq()]) as test, body=[*_, ast.Return()], orelse=[]):
            return _device(test) == "cpu"
    return False


def _needs_more(node: ast.AST) -> bool:
    """Whether a condition asks for Triton or for other processes."""
    match node:
        case ast.Call(ast.Name("triton_serves" | "_by_kernel")) | ast.Compare(ast.Call(ast.Name("world_size"))):
            return True
        case ast.Compare(_, [ast.Eq()], [ast.Constant("triton")]):
            return True
    return False


def _is_ignored(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef(name=name):
            return name in IGNORED_FUNCTIONS
        case ast.Call():
            return _name(node) in IGNORED_CALLS
        case ast.keyword(arg=name):
            return name in IGNORED_KEYWORDS
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(_needs_more, values))
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
    return isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert)


def _is_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in MODULES


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
