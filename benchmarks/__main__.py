"""Command line: ``python -m benchmarks [NAME]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import compare, coverage, losses, methods, metrics, page, startup, train, training
from benchmarks.cases import CUDA_SHAPES, SHAPES, Link, Shapes
from benchmarks.catalogue import all_cases
from benchmarks.gpu import copy_bandwidth
from benchmarks.machine import describe_machine, installed_version, keep_freed_memory
from benchmarks.table import format_compare, format_methods, format_run, format_train, format_training

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
BOTH = ("float32", "bfloat16")


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark of the command line."""
    options = _parser().parse_args(arguments)
    if options.benchmark is None:
        print(_contents())
    elif options.benchmark == "table":
        _table(options)
    else:
        if getattr(options, "device", "cpu") == "cuda" and not torch.cuda.is_available():
            sys.exit("--device cuda needs a CUDA device and a build of torch for it, found none; use --device cpu")
        if getattr(options, "threads", None) is not None:
            torch.set_num_threads(options.threads)
        chosen = {
            "losses": _losses,
            "training": _training,
            "train": _train,
            "compare": _compare,
            "methods": _methods,
            "metrics": _metrics,
            "startup": _startup,
            "coverage": _coverage,
        }
        chosen[options.benchmark](options)


def _losses(options: argparse.Namespace) -> None:
    if options.keep_memory:
        keep_freed_memory()
    device = torch.device(options.device)
    shapes = _shapes(options.shapes, CUDA_SHAPES if device.type == "cuda" else SHAPES)
    names = _dtypes(options.dtype, device)
    rounds = options.rounds or (9 if device.type == "cuda" else 25)
    before = describe_machine(device)
    bandwidth = copy_bandwidth(device, rounds) if device.type == "cuda" else None
    settings = losses.Settings(
        device,
        tuple(DTYPES[name] for name in names),
        rounds,
        options.filter,
        bandwidth.median if bandwidth else None,
    )
    rows = losses.run(settings, shapes, _progress)
    if not rows:
        sys.exit(f"--filter {options.filter!r} matches no loss and no shape; python -m benchmarks lists them")
    run = {
        "benchmark": "losses",
        "machine": before | {"load_average_at_end": describe_machine(device)["load_average"]},
        "settings": {"dtypes": names, "rounds": rounds, "filter": options.filter, "keep_memory": options.keep_memory},
        "shapes": {link: [list(shape) for shape in of_link] for link, of_link in shapes.items()},
        "bandwidth": asdict(bandwidth) if bandwidth else None,
        "rows": rows,
    }
    _write(run, options.json)
    print(format_run(run))
    if any(row["status"] != "ok" and row["kind"] != "peer" for row in rows):
        sys.exit("a candidate that is no peer failed, see the table")


def _training(options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    chosen = {key: getattr(options, key) for key in ("rounds", "autocast", "filter")}
    settings = training.Settings(device, shape=options.shape, width=options.width, **chosen)
    rows = training.run(settings, _progress)
    if not rows:
        sys.exit(f"--filter {options.filter!r} matches no pointwise softmax loss; python -m benchmarks lists them")
    run = {
        "benchmark": "training",
        "machine": describe_machine(device),
        "settings": {"shape": list(settings.shape), "width": settings.width, **chosen},
        "rows": rows,
    }
    _write(run, options.json)
    print(format_training(run))


def _train(options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    if options.data is not None and not options.data.is_dir():
        sys.exit(f"--data must be a folder, got {options.data}; leave it out for noise of the same shape")
    before = describe_machine(device) | {"pytorch_lightning": installed_version("pytorch-lightning")}
    cases = train.run(
        train.Settings(device, rounds=options.rounds, filter=options.filter, data=options.data), _progress
    )
    if not cases:
        sys.exit(f"--filter {options.filter!r} matches no case and no loss; python -m benchmarks lists them")
    run = {
        "benchmark": "train",
        "machine": before | {"load_average_at_end": describe_machine(device)["load_average"]},
        "settings": {"rounds": options.rounds, "filter": options.filter},
        "cases": cases,
    }
    _write(run, options.json)
    print(format_train(run))


def _compare(options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    chosen = {key: getattr(options, key) for key in ("rounds", "filter", "compile", "peers", "epochs")}
    before = describe_machine(device) | {"pytorch_lightning": installed_version("pytorch-lightning")}
    rows = compare.run(compare.Settings(device, **chosen), _progress)
    run = {
        "benchmark": "compare",
        "machine": before | {"load_average_at_end": describe_machine(device)["load_average"]},
        "settings": chosen,
        "rows": rows,
    }
    _write(run, options.json)
    print(format_compare(run))


def _methods(options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    chosen = {key: getattr(options, key) for key in ("rounds", "autocast", "filter")}
    settings = methods.Settings(device, shape=(options.batch, 3, 32, 32), **chosen)
    before = describe_machine(device)
    rows = methods.run(settings, _progress)
    if not rows:
        sys.exit(f"--filter {options.filter!r} matches no method; {', '.join(methods.CANDIDATES)} are known")
    run = {
        "benchmark": "methods",
        "machine": before | {"load_average_at_end": describe_machine(device)["load_average"]},
        "settings": {"shape": list(settings.shape), **chosen},
        "rows": rows,
    }
    _write(run, options.json)
    print(format_methods(run))


def _metrics(options: argparse.Namespace) -> None:
    default = metrics.Settings()
    settings = metrics.Settings(
        tuple(options.shapes) or default.shapes, options.pixels, options.batch, options.rounds, options.filter
    )
    before = describe_machine(torch.device("cpu")) | {"torchmetrics": installed_version("torchmetrics")}
    rows = metrics.run(settings, _progress)
    if not rows:
        sys.exit(f"--filter {options.filter!r} matches no metric and no shape; python -m benchmarks lists them")
    run = {
        "benchmark": "metrics",
        "machine": before | {"load_average_at_end": describe_machine(torch.device("cpu"))["load_average"]},
        "settings": asdict(settings),
        "rows": rows,
    }
    _write(run, options.json)
    print(metrics.format_metrics(run))
    if any(row["status"] != "ok" for row in rows):
        sys.exit("a metric failed, see above")


def _startup(options: argparse.Namespace) -> None:
    before = describe_machine(torch.device("cpu"))
    rows = startup.run(options.rounds, _progress)
    run = {
        "benchmark": "startup",
        "machine": before | {"load_average_at_end": describe_machine(torch.device("cpu"))["load_average"]},
        "settings": {"rounds": options.rounds},
        "rows": rows,
    }
    _write(run, options.json)
    print(startup.format_startup(run))


def _coverage(options: argparse.Namespace) -> None:
    settings = coverage.Settings(options.comparisons, options.draws, options.jobs)
    run = {"benchmark": "coverage", "settings": asdict(settings), "rows": coverage.run(settings, _progress)}
    _write(run, options.json)
    print(coverage.format_coverage(run["rows"]))


def _table(options: argparse.Namespace) -> None:
    run = _read(options.losses, "losses", {"shapes", "bandwidth"})
    training = _read(options.training, "training", set()) if options.training else None
    trained = _read(options.train, "train", {"cases"}) if options.train else None
    text = page.format_page(run, training, trained)
    if options.out is None:
        print(text, end="")
        return
    options.out.write_text(text)
    images = options.out.parent / "images"
    images.mkdir(exist_ok=True)
    for name, svg in page.draw_charts(run).items():
        (images / name).write_text(svg)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Without a name: list what there is.")
    subparsers = parser.add_subparsers(dest="benchmark", metavar="NAME")
    measured = argparse.ArgumentParser(add_help=False)
    measured.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    measured.add_argument("--filter", default="", help="only losses or shapes that contain this text, plus baselines")
    measured.add_argument("--threads", type=_positive, help="threads of torch on the CPU (torch's own choice)")
    measured.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")

    command = subparsers.add_parser(
        "losses",
        parents=[measured],
        help="time and memory of the losses against torch and other libraries",
        description=losses.__doc__,
    )
    command.add_argument(
        "--dtype",
        choices=(*sorted(DTYPES), "both"),
        action="append",
        help="of the logits, may be repeated; both is float32 and bfloat16 (cpu: float32, cuda: both)",
    )
    command.add_argument("--rounds", type=_positive, help="timed rounds over all candidates (cpu: 25, cuda: 9)")
    command.add_argument(
        "--shapes",
        type=_shape,
        nargs="+",
        default=[],
        metavar="[LINK:]SHAPE",
        help="only these: 4096x80 is one of those listed, softmax:4096x80 may be any",
    )
    command.add_argument(
        "--keep-memory",
        action="store_true",
        help="let the process keep freed memory, so that CPU times hold no page faults (glibc; see machine.py)",
    )

    command = subparsers.add_parser(
        "training",
        parents=[measured],
        help="time of a training step with each softmax loss against the same with torch's",
        description=training.__doc__,
    )
    default = training.Settings(torch.device("cpu"))
    command.add_argument("--shape", type=_image_shape, default=default.shape, help="of the logits (8x11x160x208)")
    command.add_argument("--width", type=_positive, default=default.width, help="channels of the first level (32)")
    command.add_argument("--rounds", type=_positive, default=default.rounds, help="timed rounds of each loss (25)")
    command.add_argument("--autocast", action="store_true", help="forward and loss in bfloat16 where autocast says so")

    command = subparsers.add_parser(
        "train",
        parents=[measured],
        help="time of a step of equipoise train against a bare PyTorch loop, and with each loss",
        description=train.__doc__,
    )
    command.add_argument(
        "--rounds",
        type=_positive,
        help=f"timed epochs with each loss (cpu: {train.ROUNDS['cpu']}, cuda: {train.ROUNDS['cuda']})",
    )
    command.add_argument(
        "--data", type=Path, metavar="FOLDER", help="real data, in sub-folders as the cases are called (noise instead)"
    )

    command = subparsers.add_parser(
        "compare",
        parents=[measured],
        help="steps a second of equipoise compare against bare PyTorch loops",
        description=compare.__doc__,
    )
    command.add_argument("--rounds", type=_positive, default=9, help="measured rounds (9)")
    command.add_argument("--compile", action="store_true", help="CUDA: measure our runs with --compile, too")
    command.add_argument("--no-peers", dest="peers", action="store_false", help="CUDA: skip the peers")
    command.add_argument("--epochs", type=int, default=80, help="CUDA: of the timed command, 0 for none (80)")

    command = subparsers.add_parser(
        "methods",
        parents=[measured],
        help="time of a training step of ResNet-32 with two heads or two branches against the plain one",
        description=methods.__doc__,
    )
    command.add_argument("--batch", type=_positive, default=128, help="images of a step (128)")
    command.add_argument("--rounds", type=_positive, default=15, help="timed rounds over all candidates (15)")
    command.add_argument("--autocast", action="store_true", help="forward and loss in bfloat16 where autocast says so")

    command = subparsers.add_parser(
        "metrics",
        help="time of metrics against torchmetrics, memory over many pixels",
        description=metrics.__doc__,
    )
    own = metrics.Settings()
    command.add_argument("--shapes", type=_pair, nargs="+", default=[], metavar="NxC", help="of the scores")
    command.add_argument("--pixels", type=_positive, default=own.pixels, help=f"in all ({own.pixels:,})")
    command.add_argument("--batch", type=_pair, default=own.batch, metavar="HxW", help="pixels in a batch (1024x2048)")
    command.add_argument("--rounds", type=_positive, help="timed rounds (9 and, for average precision, 3)")
    command.add_argument("--filter", default="", help="only metrics or shapes that contain this text")
    command.add_argument("--threads", type=_positive, help="threads of torch (torch's own choice)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")

    command = subparsers.add_parser(
        "startup",
        help="seconds until equipoise is imported, against torch, and until its help is there",
        description=startup.__doc__,
    )
    command.add_argument("--rounds", type=_positive, default=9, help="timed starts of each (9)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")

    command = subparsers.add_parser(
        "coverage",
        help="coverage of the intervals of equipoise compare, and its false positives, in simulated comparisons",
        description=coverage.__doc__,
    )
    simulated = coverage.Settings()
    command.add_argument("--comparisons", type=_positive, default=simulated.comparisons, help="of each kind (1,000)")
    command.add_argument("--draws", type=_positive, default=simulated.draws, help="of the bootstrap (200)")
    command.add_argument("--jobs", type=_positive, default=simulated.jobs, help="processes (one for each core)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")

    command = subparsers.add_parser(
        "table", help="the page of documentation that results give", description=page.__doc__
    )
    command.add_argument("losses", type=Path, metavar="RESULTS.json", help="of python -m benchmarks losses")
    command.add_argument("training", type=Path, nargs="?", metavar="TRAINING.json", help="of python -m ... training")
    command.add_argument("train", type=Path, nargs="?", metavar="TRAIN.json", help="of python -m benchmarks train")
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="write the page here (standard output), and its chart into images/"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _shape(text: str) -> tuple[Link | None, tuple[int, ...]]:
    link, _, sizes = text.rpartition(":")
    if link not in ("", *SHAPES):
        raise argparse.ArgumentTypeError(f"must start with softmax: or sigmoid: or neither, got {text!r}")
    return link or None, tuple(_positive(size) for size in sizes.split("x"))  # type: ignore[return-value]


def _pair(text: str) -> tuple[int, int]:
    sizes = tuple(_positive(size) for size in text.split("x"))
    if len(sizes) != 2:
        raise argparse.ArgumentTypeError(f"must be two numbers as in 1000x10, got {text!r}")
    return sizes


def _image_shape(text: str) -> tuple[int, ...]:
    _, shape = _shape(text)
    if len(shape) != 4 or shape[2] % 16 or shape[3] % 16:
        raise argparse.ArgumentTypeError(f"must be NxCxHxW with H and W multiples of 16, got {text!r}")
    return shape


def _shapes(wanted: Sequence[tuple[Link | None, tuple[int, ...]]], known: Shapes) -> Shapes:
    """The requested shapes, all by default."""
    if not wanted:
        return known
    chosen: Mapping[Link, list[tuple[int, ...]]] = {link: [] for link in known}
    for link, shape in wanted:
        links = [link] if link else [each for each in known if shape in known[each]]
        if not links:
            sys.exit(f"--shapes {'x'.join(map(str, shape))} is none of those listed; write softmax: or sigmoid: before")
        for each in links:
            chosen[each].append(shape)
    return chosen


def _dtypes(wanted: list[str] | None, device: torch.device) -> list[str]:
    named = wanted or ["both" if device.type == "cuda" else "float32"]
    return list(dict.fromkeys(name for word in named for name in (BOTH if word == "both" else (word,))))


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _read(file: Path, benchmark: str, needed: set[str]) -> dict[str, Any]:
    try:
        run: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{file} must be a result of python -m benchmarks {benchmark} --json, got {error}")
    if run.get("benchmark") != benchmark:
        sys.exit(f"{file} must come from python -m benchmarks {benchmark}, got one of {run.get('benchmark')!r}")
    if not needed <= run.keys():
        sys.exit(f"{file} has no {' and no '.join(sorted(needed - run.keys()))}, it is too old; measure again")
    return run


def _write(run: dict[str, Any], file: Path | None) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(run, indent=1) + "\n")


def _contents() -> str:
    lines = ["losses: forward and backward of every loss, time and memory; python -m benchmarks losses --help"]
    for link, shapes in SHAPES.items():
        lines.append(f"\n  {link} link, logits {' and '.join(map(str, shapes))}")
        lines.append(f"  {'on CUDA':>{len(link) + 5}}, logits {', '.join(map(str, CUDA_SHAPES[link]))}")
        lines.extend(
            f"    {case.kind:8}  {case.name}{' (on CUDA)' if case.cuda_only else ''}" for case in all_cases(link)
        )
    lines.append("\ntraining: a training step with each softmax loss; python -m benchmarks training --help")
    lines.append("train: equipoise train against a bare loop, and with each loss; python -m benchmarks train --help")
    for device, cases in train.CASES.items():
        lines.extend(f"    {device:8}  {case.title}" for case in cases)
    lines.append("compare: equipoise compare against bare loops; python -m benchmarks compare --help")
    lines.append("methods: a step of ResNet-32 with two heads or branches; python -m benchmarks methods --help")
    lines.append("metrics: metrics against torchmetrics, and over many pixels; python -m benchmarks metrics --help")
    lines.append("startup: imports against torch's, and the help; python -m benchmarks startup --help")
    lines.append("coverage: intervals of equipoise compare, simulated; python -m benchmarks coverage --help")
    lines.append("table: the page of documentation that results give; python -m benchmarks table --help")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
