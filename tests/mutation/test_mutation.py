"""The mutants are what they should be, and the tests that they are run against exist."""

import ast
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests.mutation.__main__ import EQUIVALENT, ROOT, SOURCES
from tests.mutation.modules import NOT_NUMERIC, PACKAGES, TESTS
from tests.mutation.operators import mutants
from tests.mutation.workers import PASSED, TIMED_OUT, Job, run_all


def changes(source):
    return {(mutant.before, mutant.after) for mutant in mutants("m.py", textwrap.dedent(source).encode())}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a == b", {("a == b", "a != b")}),
        ("a <= (b)", {("a <= (b)", "a < (b)")}),
        ("a < b < c", {("a < b < c", "a <= b < c"), ("a < b < c", "a < b <= c")}),
        ("a is not None", {("a is not None", "a is None")}),
        ("x = a * (b + c)", {("a * (b + c)", "a / (b + c)"), ("b + c", "b - c")}),
        ("a -= b", {("a -= b", "a += b")}),
        ("a and b or c", {("a and b or c", "a and b and c"), ("a and b", "a or b")}),
        ("x = -(a)", {("-(a)", "(a)")}),
        ("x = not (a)", {("not (a)", "(a)")}),
        ("x = ~a", {("~a", "a")}),
        ("x = 3, 0.5, 0.0, True", {("3", "4"), ("0.5", "1.0"), ("0.0", "1.0"), ("True", "False")}),
        ("x = a.sum(-1)", {("a.sum", "a.mean"), ("-1", "-2")}),
        ("x = (a + γ).clamp(low)", {("(a + γ).clamp(low)", "(a + γ)"), ("a + γ", "a - γ")}),
        ("x = torch.exp(a)", {("torch.exp", "torch.expm1")}),
        ("x = f(a, dim=b, keepdim=c)", {("f(a, dim=b, keepdim=c)", new) for new in ("f(a, keepdim=c)", "f(a, dim=b)")}),
        ("x = f(dim=b, k=c)", {("f(dim=b, k=c)", "f(k=c)"), ("f(dim=b, k=c)", "f(dim=b)")}),
        ("f(a)", {("f(a)", "pass")}),
        ("if a.b: return c", {("a.b", "not a.b")}),
        ("x = c if a(b) else d", {("a(b)", "not a(b)")}),
    ],
)
def test_each_operator(source, expected):
    assert changes(source) == expected


def test_what_computes_nothing_is_no_mutant():
    assert not changes(
        '''
        """1 + 1."""
        from typing import cast
        Number: TypeAlias = int | float
        @dataclass(frozen=True)
        class A:
            """2 * 2."""
            a: Literal[1] | None
            def __repr__(self) -> str:
                return "a" * 2
            def f(self, a: int | None) -> tuple[int, 3]:
                raise ValueError(f"{a + 1}" + "b" * 2)
            def g(self, a):
                assert a > 1
                x = isinstance(a, int | float)
                return warnings.warn("a" + "b", stacklevel=2)
        '''
    )


def test_what_no_mutant_runs_is_no_mutant():
    assert not changes(
        """
        if x.device.type != "cpu":
            return a + 1
        if b and triton_serves(x) and not c:
            return a + 1
        if sync and world_size() > 1:
            a = a + 1
        a = 1 + b if x.device.type == "mps" else b
        if c != d and backend == "triton":
            return a + 1
        """
    )
    assert (
        changes("def f(a, sync=False, *, b=1): pass") == changes("def f(a, *, b=1, sync=False): pass") == {("1", "2")}
    )
    assert changes("a if x.device.type == 'cpu' else 1") == set()
    assert changes("def f(x, a):\n return not a and triton_serves(x)") == set()
    assert changes("def f(x, a):\n if x.device.type == 'cpu':\n  return a + 2\n return a + 3") == {
        ("a + 2", "a - 2"),
        ("2", "3"),
    }
    assert changes("if x.device.type == 'cpu': return 1") == {("1", "2")}
    assert changes("if x.ndim == 2 or x.device.type != 'cpu': return y") == {
        ("x.ndim == 2", "x.ndim != 2"),
        ("2", "3"),
        ("x.ndim == 2 or x.device.type != 'cpu'", "x.ndim == 2 and x.device.type != 'cpu'"),
    }
    assert changes("if not triton_serves(x): return 1") == {("not triton_serves(x)", "triton_serves(x)"), ("1", "2")}


@pytest.mark.parametrize("module", TESTS)
def test_mutants_are_programs(module):
    source = (SOURCES / module).read_bytes()
    made = mutants(module, source)
    assert len({(mutant.start, mutant.after) for mutant in made}) == len(made) == len({m.rank(0) for m in made}) > 0
    for mutant in made[::40]:
        changed = mutant.apply(source)
        assert changed != source
        ast.parse(changed)


def test_a_sample_stays_while_other_lines_change():
    before = mutants("m.py", b"x = a + b\n")
    after = mutants("m.py", b"# more\ny = 2\nx = a + b\n")
    assert [mutant.rank(1) for mutant in after if mutant.before == "a + b"] == [mutant.rank(1) for mutant in before]
    assert before[0].rank(1) != before[0].rank(2)


def test_every_numeric_module_has_its_tests():
    files = {path.relative_to(SOURCES).as_posix() for name in PACKAGES for path in (SOURCES / name).glob("[!_]*.py")}
    assert not files - {*TESTS, *NOT_NUMERIC}, "say in tests/mutation/modules.py which tests these files have"
    assert not set(TESTS) & set(NOT_NUMERIC)
    for name in {*TESTS, *NOT_NUMERIC}:
        assert (SOURCES / name).is_file(), name
    for test in {test for tests in TESTS.values() for test in tests}:
        assert (ROOT / test).is_file(), test


def test_equivalent_mutants_have_reasons():
    for module, entries in tomllib.loads(EQUIVALENT.read_text()).items():
        assert module in TESTS
        for entry in entries:
            assert {"line", "reason"} <= set(entry) <= {"line", "after", "reason"}
            assert entry["reason"]


def test_processes_run_the_changed_source(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "halved_for_mutants.py"
    module.write_text("def half(x):\n    return x / 2\n")
    test = tmp_path / "test_half.py"
    test.write_text("from halved_for_mutants import half\n\ndef test_half():\n    assert half(4) == 2\n")
    sources = [None, b"def half(x):\n    return x * 2\n", b"def half(x):\n    return x // 2\n", b"while True: pass\n"]
    jobs = [Job(module, source, (str(test),), 60.0 if index < 3 else 3.0) for index, source in enumerate(sources)]
    statuses = {number: status for number, status, _ in run_all(jobs, workers=2)}
    assert [statuses[0], statuses[2], statuses[3]] == [PASSED, PASSED, TIMED_OUT]
    assert statuses[1] not in {PASSED, TIMED_OUT}
    assert module.read_text().endswith("x / 2\n")
