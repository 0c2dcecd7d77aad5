"""Compare losses: train them on one data set with several seeds, and evaluate the differences."""

from __future__ import annotations

import errno
import gc
import math
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from equipoise._extras import check_installed
from equipoise._reading import read_record
from equipoise._suggestions import some
from equipoise._visible import visible
from equipoise._writing import DRAFT, clear_drafts, no_empty_folders, open_unlinked, write_text
from equipoise.comparison.damage import damage_of, set_aside
from equipoise.comparison.folder import ComparisonFolder, PlanEntry, PlannedRun
from equipoise.comparison.jobs import Job, Jobs, LocalJobs
from equipoise.comparison.kinds import kind_of
from equipoise.comparison.lock import LOCKS, at_work, only_one
from equipoise.comparison.plan import as_planned, baseline_of, entries_of, planned_runs, run_spec, surveyed_entries
from equipoise.comparison.progress import Display
from equipoise.comparison.spec import CompareSpec
from equipoise.comparison.verdict import Verdict
from equipoise.expressions import canonical
from equipoise.train.errors import TrainingError
from equipoise.train.folder import RunFolder, plain, write_json
from equipoise.train.spec import FREE, RunSpec, describe_differences

__all__ = ["compare"]

MOST_JOBS = 8
"""Default maximum of parallel runs on CPUs: each holds the data in memory."""
RUNS_PER_GPU = 16
"""Default maximum of parallel runs on a GPU; each begins when there is memory for it."""
GROWING = ("losses", "methods", "seeds")
"""Settings to which values may be added when a comparison is resumed."""


def compare(
    spec: CompareSpec,
    out: Path,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    say: Callable[[str], None] = lambda line: None,
    console: Console | None = None,
    page: Callable[[ComparisonFolder, Verdict], str] | None = None,
) -> ComparisonFolder:
    """Train every loss with every seed, skip finished runs, then write the verdict and the report.

    Args:
        spec: all settings.
        out: folder of the comparison; an interrupted one is resumed, and losses and seeds may be added.
        jobs: parallel runs; None for as many as fit on the GPUs, or one per core up to 8, and with Ray as many as fit.
        ray: address of a Ray cluster that trains the runs; None for processes of this machine.
        say: called with messages for the user.
        console: console of a progress bar; None for no progress bar.
        page: returns the HTML of the report; None for no report.

    Raises:
        DataError: the data cannot be used.
        ValueError: a setting does not fit the data, or the folder holds another comparison.
        TrainingError: every run failed, or the comparison was interrupted.
    """
    folder = ComparisonFolder(out.absolute())
    with _locked(folder):
        log = _logging(folder, say)
        with _explained(folder), _terminated_is_interrupted():
            _train_all(folder, spec, jobs, ray, log, console)
            runs = _compared(folder)
            if len(_missing(runs)) == len(runs):
                why = "".join(f": {one.loss}, seed {one.seed}: {one.error}" for one in folder.failures[:1])
                logs = folder.path / "failures"
                raise TrainingError(f"all {len(runs)} runs failed{why}; see the logs in {logs}")
            _judge(folder, page)
    return folder


@contextmanager
def _explained(folder: ComparisonFolder) -> Iterator[None]:
    """Raise interruptions and a full disk as errors that say how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        why = "interrupted"
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        why = f"the disk is full ({error}); make room"
    else:
        return
    done = f"{len(folder.finished)} of {len(folder.runs)} runs are" if folder.exists else "nothing is"
    raise TrainingError(f"{why}; {done} finished; run the same command again to resume")


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Handle SIGTERM (``kill``, batch systems) like an interruption, unless it already has a handler."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _locked(folder: ComparisonFolder) -> Iterator[None]:
    """Lock the folder for this comparison; delete its files again if no plan was written."""
    path = folder.path
    if not folder.exists and path.exists() and not (path.is_dir() and all(map(_of_no_plan, path.iterdir()))):
        raise ValueError(f"{path}: the folder exists and is not a comparison; choose another --out")
    try:
        with no_empty_folders(path):
            path.mkdir(parents=True, exist_ok=True)
            with only_one(path):
                clear_drafts(path)
                try:
                    yield
                finally:
                    if not folder.exists:
                        _clear(path)
    except PermissionError as error:
        raise ValueError(f"{path}: the folder must be writable ({error}); choose another --out") from None


def _of_no_plan(file: Path) -> bool:
    """Whether a file may come from a comparison that was stopped before its plan was written."""
    return (
        file.name in (*LOCKS, "compare.log")
        or file.name.startswith(f".compare.json{DRAFT}")
        or (file.name == "runs" and file.is_dir() and not any(file.iterdir()))
    )


def _clear(path: Path) -> None:
    """Delete the files of a comparison without a plan, and no others."""
    for file in filter(_of_no_plan, path.iterdir()):
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()


def _logging(folder: ComparisonFolder, say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that also writes messages to the log of the comparison, unless that fails."""

    def both(line: str) -> None:
        with suppress(OSError), open_unlinked(folder.log) as log:
            log.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {visible(line)}\n")
        say(line)

    return both


def _train_all(
    folder: ComparisonFolder,
    spec: CompareSpec,
    jobs: int | None,
    ray: str | None,
    say: Callable[[str], None],
    console: Console | None,
) -> None:
    """Write the plan if there is none, and train the missing runs."""
    known = _entries_so_far(folder, spec)
    _set_damaged_aside(folder, say)
    entries = known
    if known is None and spec.compared is not None:
        entries = as_planned(entries_of(spec.compared), folder)
    missing = None if entries is None else _missing(_runs(folder, spec, entries))
    if known is not None and not missing:
        _write_plan(folder, spec, known)
        return
    say(f"comparing {kind_of(spec.compared or ()).many} on {spec.data} in {folder.path}")
    with _jobs(spec, jobs, None if missing is None else len(missing), ray) as workers:
        if known is None:
            known = as_planned(_survey(folder, workers, spec, say), folder)
        _write_plan(folder, spec, known)
        _train(folder, spec, workers, say, console)


def _entries_so_far(folder: ComparisonFolder, spec: CompareSpec) -> list[PlanEntry] | None:
    """Entries of the plan; None if there is none or its rows differ; raise if it is another comparison."""
    if not folder.exists:
        return None
    try:
        plan = folder.read_plan()
        stored, entries = plan.spec, plan.entries
        suggested, seeds = stored["losses"] is None and not stored.get("methods"), stored["seeds"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{folder.plan}: the file is not the plan of a comparison; choose another --out") from None
    texts = [entry.text for entry in entries]
    meant = [canonical(text) for text in texts]
    changed = spec.differing(stored, (*FREE, *GROWING, "baseline"))
    compared = None if spec.compared is None else list(spec.compared)
    removed = [text for text, one in zip(texts, meant, strict=True) if compared is not None and one not in compared]
    removed += [f"seed {seed}" for seed in seeds if seed not in spec.seeds]
    if compared is None and not suggested:
        changed["losses"] = texts, "those that the data suggest"
    if changed or removed:
        from equipoise.comparison.command import command_of

        lacking = [f"{some(removed)}, which this one lacks"] if removed else []
        differs = " and with ".join([*([describe_differences(changed)] if changed else []), *lacking])
        command = command_of(stored, str(folder.path))
        remedy = "" if changed else f"resume it ({command}), see it (equipoise report {folder.path}), or "
        raise ValueError(
            f"{folder.path} already holds a comparison with {differs}; {remedy}choose "
            "another --out (losses, methods and seeds may be added to a comparison, nothing else may change)"
        )
    return entries if compared is None or compared == meant else None


def _set_damaged_aside(folder: ComparisonFolder, say: Callable[[str], None]) -> None:
    """Rename finished runs with a damaged file; they are trained again."""
    for run in folder.finished if folder.exists else ():
        damage = damage_of(run.folder)
        if damage is not None:
            say(f"{damage}; {run.name} is kept as {set_aside(run.folder)} and trained again")


def _compared(folder: ComparisonFolder) -> list[PlannedRun]:
    """The runs, except those that are only stage one of others."""
    losses = {loss for entry in folder.entries for loss in entry.candidates}
    return [run for run in folder.runs if run.loss in losses]


def _missing(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    return [run for run in runs if not run.folder.finished]


def _runs(folder: ComparisonFolder, spec: CompareSpec, entries: Sequence[PlanEntry]) -> list[PlannedRun]:
    planned = [run.loss for run in folder.runs] if folder.exists else []
    return planned_runs(folder.path, entries, spec.seeds, planned)


def _write_plan(folder: ComparisonFolder, spec: CompareSpec, entries: Sequence[PlanEntry]) -> None:
    runs = _runs(folder, spec, entries)
    baseline = baseline_of(spec, entries)
    if not folder.exists or plain(spec.model_dump()) != folder.spec:
        folder.write_plan(spec.model_dump(), entries, baseline, runs)


def _jobs(spec: CompareSpec, jobs: int | None, needed: int | None, ray: str | None) -> Jobs:
    """Workers: a process for each run, on GPUs one for all runs of a GPU; or a Ray cluster."""
    if ray is not None:
        from equipoise.comparison.ray_jobs import RayJobs

        return RayJobs(ray, prepare, jobs, on_gpus={"auto": None, "cpu": False}.get(spec.accelerator, True))
    check_installed("training", "pytorch_lightning")
    gpus = _gpus() if spec.accelerator in ("auto", "gpu", "cuda") else []
    runs = jobs or RUNS_PER_GPU * len(gpus) or min(MOST_JOBS, _cores())
    runs = runs if needed is None else max(1, min(runs, needed))  # at least one, which opens the data
    count = min(runs, len(gpus)) if gpus else runs
    threads = os.environ.get(
        "OMP_NUM_THREADS", str(max(1, _cores() // count))
    )  # also with GPUs: evaluation uses the CPU
    environments = [{"CUDA_VISIBLE_DEVICES": gpu, "OMP_NUM_THREADS": threads} for gpu in gpus] or [{}]
    return LocalJobs(count, prepare, environments, together=math.ceil(runs / count), most=runs)


def _cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> list[str]:
    """Names of the visible CUDA devices."""
    import torch

    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[: torch.cuda.device_count()] or [str(number) for number in range(torch.cuda.device_count())]


def _survey(folder: ComparisonFolder, workers: Jobs, spec: CompareSpec, say: Callable[[str], None]) -> list[PlanEntry]:
    """Entries that fit the data."""
    finished = [run.folder.record.data.fingerprint for run in folder.finished] if folder.exists else []
    fingerprint = next(filter(None, finished), None)
    (outcome,) = workers.outcomes([Job("the data", surveyed_entries, (spec, fingerprint))])
    if outcome.error is not None:
        raise ValueError(outcome.error)
    entries: list[PlanEntry]
    entries, notes = outcome.value
    for note in notes:
        say(note)
    return entries


def _train(
    folder: ComparisonFolder, spec: CompareSpec, workers: Jobs, say: Callable[[str], None], console: Console | None
) -> None:
    """Train the missing runs."""
    runs = folder.runs
    missing = {run.name: run for run in _missing(runs)}
    if len(missing) < len(runs):
        say(f"{len(runs) - len(missing)} of {len(runs)} runs are finished already")
    for failure in folder.failures:
        say(f"{failure.loss}, seed {failure.seed} failed before and is trained again: {failure.error}")
    specs = [run_spec(spec, run) for run in runs]
    model = [] if spec.model == "auto" else [spec.model]  # otherwise a message about the data names it
    many = [] if workers.at_a_time is None else [f"{min(workers.at_a_time, len(missing))} at a time"]
    say(", ".join([*model, _count(spec.epochs, "epoch"), _count(len(missing), "run"), *many]))
    calls = [
        Job(
            run.name,
            train_one,
            (run_settings, run.folder.path),
            after=None if run.stage_one is None else run.stage_one.path.name,
        )
        for run, run_settings in zip(runs, specs, strict=True)
        if run.name in missing
    ]
    waited_for = {call.after for call in calls}
    calls.sort(key=lambda call: call.name not in waited_for)
    with Display(
        runs, [run_settings.epochs for run_settings in specs], say, console, cheaper=_cheaper(folder, spec)
    ) as display:
        for outcome in workers.outcomes(calls, display.tick):
            run = missing[outcome.name]
            if outcome.error is None:
                folder.failure(run.name).unlink(missing_ok=True)
                folder.failure(run.name).with_suffix(".log").unlink(missing_ok=True)
                display.finished(run)
            else:
                with suppress(OSError):  # such as a full disk; the message reports the failure
                    folder.write_failure(run, outcome.error, outcome.log)
                display.failed(run, outcome.error, folder.failure(run.name).with_suffix(".log"))


def _cheaper(folder: ComparisonFolder, spec: CompareSpec) -> str:
    """The command of the same comparison with a fifth of the epochs and two seeds."""
    from equipoise.comparison.command import command_of

    fewer = {"epochs": max(1, spec.epochs // 5), "seeds": list(spec.seeds)[:2]}
    return command_of(spec.model_dump() | fewer, f"{folder.path}-first-look")


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def _judge(folder: ComparisonFolder, page: Callable[[ComparisonFolder, Verdict], str] | None) -> None:
    """Write the verdict on the finished runs, and the report."""
    from equipoise.comparison.judge import judge

    verdict = judge(folder)
    write_json(folder.verdict, verdict.to_json())
    if page is not None:
        write_text(folder.report, page(folder, verdict))


def prepare() -> None:
    """Prepare a worker process: import modules, and use one thread, because runs are parallel.

    ``OMP_NUM_THREADS`` overrides the number of threads; with another number results may differ in their last digits.
    With GPUs the cores are divided among the processes.
    """
    threads = os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    import equipoise.train.run  # noqa: F401

    torch.set_num_threads(int(threads))
    gc.collect()
    gc.freeze()  # modules stay: collecting the garbage of a run need not look at them


def train_one(spec: RunSpec, out: Path) -> None:
    """Train one run of a comparison, in a worker process that may train others at the same time."""
    import torch

    from equipoise.train.company import worker_process
    from equipoise.train.run import run

    comparison = ComparisonFolder(out.parent.parent)
    if not comparison.exists:
        raise ValueError(
            f"{comparison.path}: the folder must be seen by all machines that train, found none on "
            f"{socket.gethostname()}; choose an --out that they share"
        )
    on_gpu = spec.accelerator != "cpu" and torch.cuda.is_available()
    try:
        with at_work(comparison.path), worker_process().member(on_gpu=on_gpu):
            folder = RunFolder(out)
            if folder.draft.exists() and not (folder.draft / "spec.json").is_file():
                shutil.rmtree(folder.draft)  # killed before its settings were written
            elif folder.draft.exists():
                try:
                    read_record(folder.draft / "spec.json", advice="the run is trained again")
                except ValueError as error:
                    _write_line(f"{error}; what there was is kept as {set_aside(folder)}")
            try:
                run(spec, out, images_checked=True, say=_write_line)
            finally:
                gc.collect()
                _free_memory()
    except RuntimeError as error:
        _check_device(error)
        raise


def _free_memory() -> None:
    """Return the memory of a finished run to the device."""
    import torch

    with suppress(RuntimeError):  # the device is lost
        torch.cuda.empty_cache()


def _check_device(error: RuntimeError) -> None:
    """Raise another error if the device is lost for this process."""
    import torch

    from equipoise.train.errors import LostDeviceError

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        try:
            torch.cuda.current_stream().synchronize()
        except RuntimeError as lost:
            raise LostDeviceError(f"{type(error).__name__}: {error}; the device stopped with {lost}") from error


def _write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
