"""Command line: ``python -m tests.mutation`` changes the numeric modules a little and counts what the tests notice."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tomllib
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.mutation.modules import DESELECTED, TESTS
from tests.mutation.operators import Mutant, mutants
from tests.mutation.workers import PASSED, PYTEST, TIMED_OUT, Job, run_all

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "equipoise"
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
SELECTION = ("-k", DESELECTED)


def main(arguments: list[str] | None = None) -> None:
    """Run what the command line says; exit with 1 below ``--least`` percent."""
    options = _parser().parse_args(arguments)
    os.chdir(ROOT)
    modules = [module for module in TESTS if not options.module or any(part in module for part in options.module)]
    if not modules:
        sys.exit(f"--module must be part of a name in tests/mutation/modules.py, got {options.module}")
    everything = [mutant for module in modules for mutant in mutants(module, (SOURCES / module).read_bytes())]
    equivalent = _equivalent()
    stale = {key for key in equivalent if key[0] in modules} - {key for m in everything for key in _keys(m)}
    chosen = sorted(everything, key=lambda mutant: mutant.rank(options.seed))[: options.sample or None]
    if options.again:
        again = {(entry["module"], entry["text"], entry["after"]) for entry in _survivors(options.again)}
        chosen = [mutant for mutant in everything if (mutant.module, mutant.text, mutant.after) in again]
    chosen = [mutant for mutant in chosen if not equivalent & _keys(mutant)]
    chosen.sort(key=lambda mutant: (modules.index(mutant.module), mutant.line))
    if options.list:
        print(*map(_line, chosen), sep="\n")
        return

    seconds = _seconds_unchanged({mutant.module for mutant in chosen}, options.jobs)
    broken = {mutant.module for mutant in chosen} - set(seconds)
    chosen = [mutant for mutant in chosen if mutant.module in seconds]
    jobs = [_job(mutant.module, mutant, options.slower * seconds[mutant.module] + 20.0) for mutant in chosen]
    statuses = [0] * len(jobs)
    for done, (number, status, _) in enumerate(run_all(jobs, options.jobs), start=1):
        statuses[number] = status
        word = {PASSED: "survived", TIMED_OUT: "timed out"}.get(status, "killed")
        if options.verbose or status == PASSED:
            print(f"{done}/{len(jobs)} {word}: {_line(chosen[number])}", flush=True)

    print("\n" + _table(chosen, statuses))
    survivors = [mutant for mutant, status in zip(chosen, statuses, strict=True) if status == PASSED]
    percent = 100.0 * (1.0 - len(survivors) / max(1, len(chosen)))
    if options.json:
        record = {
            "seed": options.seed,
            "sample": options.sample,
            "mutants": len(chosen),
            "killed_percent": round(percent, 2),
            "survivors": [asdict(mutant) for mutant in survivors],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    for module, text, after in sorted(stale):
        print(f"{EQUIVALENT.name}: no such mutant any more, delete it: {module}: {text!r} -> {after!r}")
    if broken:
        sys.exit(f"the tests of {len(broken)} modules fail without a mutant, see above; fix them first")
    if percent < options.least:
        sys.exit(f"{percent:.1f} % killed, --least is {options.least:g}: write tests for the survivors above")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--module", action="append", help="only files whose name contains this; may be repeated")
    parser.add_argument("--sample", type=int, default=300, help="how many mutants, 0 for all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which mutants (default: %(default)s)")
    parser.add_argument("--again", type=Path, metavar="JSON", help="only the survivors of that run")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each core)")
    parser.add_argument("--least", type=float, default=92.0, help="percent to kill (default: %(default)g)")
    parser.add_argument("--slower", type=float, default=4.0, help="time limit in times of the unchanged tests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results, with the survivors, to this file")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    parser.add_argument("--verbose", action="store_true", help="show the killed mutants too")
    return parser


def _job(module: str, mutant: Mutant, timeout: float) -> Job:
    file = SOURCES / module
    return Job(file, mutant.apply(file.read_bytes()), _tests([module]), timeout, SELECTION)


def _tests(modules: list[str]) -> tuple[str, ...]:
    """The examples of these modules, and the tests that they have in common."""
    return *(f"src/equipoise/{module}" for module in modules), *TESTS[modules[0]]


def _seconds_unchanged(modules: set[str], workers: int) -> dict[str, float]:
    """How long the tests of each module take without a mutant, of those that pass them."""
    together: dict[tuple[str, ...], list[str]] = {}
    for module in sorted(modules):
        together.setdefault(TESTS[module], []).append(module)
    groups = list(together.values())
    seconds = {}
    jobs = [Job(SOURCES, None, _tests(group), 3600.0, SELECTION) for group in groups]
    for number, status, elapsed in run_all(jobs, workers):
        if status != PASSED:
            command = shlex.join(["pytest", *PYTEST, *SELECTION, *_tests(groups[number])])
            print(f"{', '.join(groups[number])}: tests fail without a mutant; run EQUIPOISE_REPEATABLE=1 {command}")
        else:
            seconds.update(dict.fromkeys(groups[number], elapsed))
    return seconds


def _keys(mutant: Mutant) -> set[tuple[str, str, str]]:
    """What a list of equivalent mutants may name it by: itself, or all mutants of its line without the comment."""
    code = mutant.text.split("  # ")[0]
    return {(mutant.module, code, mutant.after), (mutant.module, code, "")}


def _equivalent() -> set[tuple[str, str, str]]:
    entries = tomllib.loads(EQUIVALENT.read_text())
    return {(module, entry["line"], entry.get("after", "")) for module, listed in entries.items() for entry in listed}


def _survivors(file: Path) -> list[dict]:
    return json.loads(file.read_text())["survivors"]


def _line(mutant: Mutant) -> str:
    before, after = (" ".join(text.split()) for text in (mutant.before, mutant.after))
    return f"src/equipoise/{mutant.module}:{mutant.line}: {before}  ->  {after}\n    {mutant.text}"


def _table(chosen: list[Mutant], statuses: list[int]) -> str:
    counts: dict[str, Counter[str]] = {}
    for mutant, status in zip(chosen, statuses, strict=True):
        word = {PASSED: "survived", TIMED_OUT: "timed out"}.get(status, "failed")
        for name in (mutant.module, "all"):
            counts.setdefault(name, Counter()).update([word])
    counts["all"] = counts.pop("all", Counter())
    rows = [f"{'module':<32}{'mutants':>9}{'killed':>9}{'timed out':>11}{'survived':>10}{'percent':>9}"]
    for name, count in counts.items():
        killed = count.total() - count["survived"]
        share = 100.0 * killed / max(1, count.total())
        rows.append(
            f"{name:<32}{count.total():>9}{killed:>9}{count['timed out']:>11}{count['survived']:>10}{share:>9.1f}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
