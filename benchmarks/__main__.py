"""Command line: ``python -m benchmarks [NAME]``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from benchmarks import losses
from benchmarks.cases import SHAPES
from benchmarks.catalogue import all_cases
from benchmarks.losses import Settings
from benchmarks.machine import describe_machine, keep_freed_memory
from benchmarks.table import format_run

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def main(arguments: list[str] | None = None) -> None:
    """Run what the command line says."""
    options = _parser().parse_args(arguments)
    if options.benchmark is None:
        print(_contents())
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda needs a CUDA device and a build of torch for it, found none; use --device cpu")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.keep_memory:
        keep_freed_memory()
    settings = Settings(torch.device(options.device), DTYPES[options.dtype], options.rounds, options.filter)
    before = describe_machine(settings.device)
    rows = losses.run(settings, progress=lambda text: print(text, file=sys.stderr, flush=True))
    if not rows:
        sys.exit(f"--filter {options.filter!r} matches no loss and no shape; python -m benchmarks lists them")
    run = {
        "benchmark": "losses",
        "machine": before | {"load_average_at_end": describe_machine(settings.device)["load_average"]},
        "settings": {key: getattr(options, key) for key in ("dtype", "rounds", "filter", "keep_memory")},
        "rows": rows,
    }
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(run, indent=1) + "\n")
    print(format_run(run))
    if any(row["status"] != "ok" and row["kind"] != "peer" for row in rows):
        sys.exit("a candidate that is no peer failed, see the table")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Without a name: list what there is.")
    subparsers = parser.add_subparsers(dest="benchmark", metavar="NAME")
    command = subparsers.add_parser(
        "losses", help="time and memory of the losses against torch and other libraries", description=losses.__doc__
    )
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    command.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="of the logits (float32)")
    command.add_argument("--rounds", type=_positive, default=25, help="timed rounds over all candidates (25)")
    command.add_argument("--filter", default="", help="only losses or shapes that contain this text, plus baselines")
    command.add_argument("--threads", type=_positive, help="threads of torch on the CPU (torch's own choice)")
    command.add_argument(
        "--keep-memory",
        action="store_true",
        help="let the process keep freed memory, so that CPU times hold no page faults (glibc; see machine.py)",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _contents() -> str:
    lines = ["losses: forward and backward of every loss, time and memory; python -m benchmarks losses --help"]
    for link, shapes in SHAPES.items():
        lines.append(f"\n  {link} link, logits {' and '.join(map(str, shapes))}")
        lines.extend(f"    {case.kind:8}  {case.name}" for case in all_cases(link))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
