"""The ``equipoise compare`` command: real runs in real processes, killed, resumed, distributed and refused."""

import html
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.recommendation import recommended
from equipoise.comparison.verdict import read_verdict
from tests.data.making import class_folders
from tests.e2e.commands import ENVIRONMENT, assert_same_run, contents, flags
from tests.marks import slow

LOSSES = "ce focal(gamma=[1, 2])"
SMALL = {"data": "digits-lt", "model": "linear", "epochs": 6, "losses": LOSSES, "seeds": 2, "accelerator": "cpu"}
RUNS = ["ce-0", "focal-gamma=1-0", "focal-gamma=2-0", "ce-1", "focal-gamma=1-1", "focal-gamma=2-1"]
TIMES = ("seconds_per_step",)


def compared(equipoise, folder, status=0, out="compared", **options):
    """A finished comparison, and its output."""
    finished = equipoise(folder, "compare", out=out, **options)
    assert finished.status == status, finished
    assert "Traceback" not in finished.err
    return ComparisonFolder(folder / out), finished


def verdict(comparison):
    """The JSON of the verdict without times."""

    def timeless(value):
        if isinstance(value, dict):
            return {key: timeless(item) for key, item in value.items() if key not in TIMES}
        if isinstance(value, list):
            return [timeless(item) for item in value if not (isinstance(item, dict) and item.get("metric") in TIMES)]
        return value

    content = timeless(json.loads(comparison.verdict.read_text()))
    return content | {"sentences": [text for text in content["sentences"] if not text.startswith("A step takes")]}


def assert_same_comparison(first, second):
    assert [run.name for run in first.runs] == [run.name for run in second.runs]
    for one, other in zip(first.runs, second.runs, strict=True):
        assert_same_run(one.folder, other.folder)
    assert first.read_plan() == second.read_plan()
    one, other = (verdict(folder) for folder in (first, second))
    del one["inputs"], other["inputs"]  # a digest of files in which times differ
    assert one == other


def finished_files(comparison):
    """Files of finished runs: inode, modification time and content."""
    runs = comparison.finished if comparison.exists else []
    return {file: (file.stat().st_ino, *content) for run in runs for file, content in contents(run.folder.path).items()}


@pytest.fixture(scope="module")
def whole(equipoise, tmp_path_factory):
    """A comparison without interruption, and its output."""
    return compared(equipoise, tmp_path_factory.mktemp("whole"), jobs=2, **SMALL)


def test_files_of_a_comparison(whole):
    comparison, finished = whole
    assert sorted(path.name for path in (comparison.path / "runs").iterdir()) == sorted(RUNS)
    assert all(run.folder.finished for run in comparison.runs)
    assert comparison.failures == []
    assert comparison.baseline == "ce"
    assert finished.err == ""
    for count in range(1, 7):
        assert f"{count}/6 " in finished.out
    assert comparison.report.read_text().startswith("<!doctype html>")
    advice = recommended(comparison, read_verdict(comparison.verdict))
    lines = finished.out.splitlines()
    if advice.settings is not None:  # two seeds seldom decide
        assert lines.pop() == advice.next_step("compared")
    *_, use, chosen, in_python, report = lines
    assert use == f"{advice.why}: equipoise export compared/runs/{advice.run.name}"
    assert chosen == advice.note
    assert in_python == advice.in_your_loop
    assert in_python.startswith("In your own training loop: loss = equipoise.")
    assert in_python in html.unescape(comparison.report.read_text())
    assert report == "The report: compared/report.html"
    first = finished.out.splitlines()[:6]
    assert "digits-lt: 10 classes, 276 training, 200 validation and 400 test samples" in first
    assert "linear, 6 epochs, 6 runs, 2 at a time" in first
    assert {path.name for path in comparison.path.iterdir() if not path.name.startswith(".")} == {
        "compare.json",
        "compare.log",
        "report.html",
        "runs",
        "verdict.json",
    }


def test_the_verdict_is_about_the_losses(whole):
    content = verdict(whole[0])
    assert content["baseline"] == "ce"
    assert [row["loss"] for row in content["rows"]] == ["ce", "focal(gamma=[1, 2])"]
    assert content["rows"][1]["chosen"] in ("focal(gamma=1)", "focal(gamma=2)")
    assert content["seeds"] == [0, 1]
    assert content["sentences"]


def test_run_equals_that_of_train(whole, equipoise, tmp_path):
    options = {key: value for key, value in SMALL.items() if key not in ("losses", "seeds")}
    alone = equipoise.train(tmp_path, loss="focal(gamma=2)", seed=1, **options)
    (run,) = (run for run in whole[0].runs if run.name == "focal-gamma=2-1")
    assert_same_run(alone, run.folder)
    assert alone.record.spec == run.folder.record.spec


def test_repeated_command_trains_nothing(whole, equipoise):
    comparison, _ = whole
    before = finished_files(comparison)
    _, finished = compared(equipoise, comparison.path.parent, jobs=2, **SMALL)
    assert finished_files(comparison) == before
    assert "1/6 " not in finished.out


@pytest.mark.slow
def test_one_process_gives_the_result_of_two(whole, equipoise, tmp_path):
    file = tmp_path / "compare.yaml"
    file.write_text("\n".join(f"{key}: {value}" for key, value in SMALL.items() if key != "losses"))
    with file.open("a") as settings:
        settings.write("\nlosses: [ce, 'focal(gamma=[1, 2])']\nout: compared\n")
    finished = equipoise(tmp_path, "compare", file, jobs=1)
    assert finished.status == 0, finished.err
    assert_same_comparison(ComparisonFolder(tmp_path / "compared"), whole[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_comparison_resumes_after_kills(whole, equipoise, tmp_path):
    """Killed ten times: finished runs are not changed, and the result is that without interruption."""
    draw = random.Random("kill")
    comparison = ComparisonFolder(tmp_path / "compared")
    for number in range(10):
        before = finished_files(comparison)
        process = equipoise.start(tmp_path, "compare", out="compared", jobs=2, **SMALL)
        if number % 2:  # some epochs further, and a little longer; otherwise whatever it may be doing
            wanted = epochs_done(comparison) + draw.randint(1, 8)
            until(lambda process=process, wanted=wanted: epochs_done(comparison) >= wanted or is_over(process))
        time.sleep(draw.uniform(0, 0.1 if number % 2 else 10))
        if not is_over(process):
            # alone: its own processes have to find out for themselves
            draw.choice([os.kill, os.killpg])(process, signal.SIGKILL)
        assert equipoise.wait().status in (0, -signal.SIGKILL)
        assert before.items() <= finished_files(comparison).items()
    before = finished_files(comparison)
    compared(equipoise, tmp_path, jobs=2, **SMALL)
    assert before.items() <= finished_files(comparison).items()
    assert_same_comparison(comparison, whole[0])


def epochs_done(comparison):
    """Rows of all runs, while folders may be renamed."""
    done = 0
    for file in comparison.path.glob("runs/*/history.jsonl"):
        try:
            done += file.read_text().count("\n")
        except FileNotFoundError:
            continue
    return done


def until(condition):
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def is_over(process):
    """Whether a process has ended, including zombies."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def children(process):
    """The worker processes of a comparison."""
    processes = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(file.read_text().rpartition(")")[2].split()[1])
            command = (file.parent / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == process and "spawn_main" in command:
            processes.append(int(file.parent.name))
    return processes


@pytest.mark.slow
def test_killed_process_loses_one_run(equipoise, tmp_path):
    long = SMALL | {"epochs": 40, "losses": "ce focal", "seeds": 1}
    comparison = ComparisonFolder(tmp_path / "compared")
    process = equipoise.start(tmp_path, "compare", out="compared", jobs=1, **long)
    until(lambda: (comparison.path / "runs" / "ce-0.unfinished" / "resume.ckpt").exists())
    (worker,) = children(process)
    os.kill(worker, signal.SIGKILL)
    finished = equipoise.wait()
    assert finished.status == 1
    assert "ce, seed 0: failed: the process of the run was terminated by SIGKILL" in finished.out
    assert "1 of 2 runs failed; run the same command again to retry" in finished.err
    assert [run.name for run in comparison.finished] == ["focal-0"]
    assert "epoch  1/40" in (comparison.path / comparison.failures[0].log).read_text()
    _, finished = compared(equipoise, tmp_path, jobs=1, **long)
    assert "ce, seed 0 failed before and is trained again" in finished.out
    assert len(comparison.finished) == 2
    assert comparison.failures == []
    assert "resuming an earlier attempt" in (comparison.path / "runs" / "ce-0" / "train.log").read_text()


def test_nan_loss_does_not_stop_other_runs(equipoise, tmp_path):
    comparison, finished = compared(equipoise, tmp_path, status=1, **SMALL | {"losses": "1e39*focal ce", "jobs": 1})
    assert [run.loss for run in comparison.finished] == ["ce", "ce"]
    assert [(one.loss, one.seed) for one in comparison.failures] == [("1e+39 * focal", 0), ("1e+39 * focal", 1)]
    for one in comparison.failures:
        assert one.error.startswith("the loss became nan in epoch 1; lower --lr")
        assert "the loss became nan" in (comparison.path / one.log).read_text()
        assert f"{comparison.path / one.log}" in finished.out
    rows = {row["loss"]: row for row in verdict(comparison)["rows"]}
    assert rows["1e+39 * focal"]["failed_seeds"] == [0, 1]
    assert rows["ce"]["failed_seeds"] == []
    assert comparison.report.is_file()


@pytest.mark.slow
def test_full_disk_keeps_finished_runs(equipoise, tmp_path):
    finished = equipoise(tmp_path, "compare", out="compared", jobs=1, largest_file=4000, **SMALL | {"seeds": 1})
    comparison = ComparisonFolder(tmp_path / "compared")
    assert finished.status == 1
    assert "the disk is full" in finished.err
    assert "Traceback" not in finished.err
    assert len(comparison.failures) == 3
    compared(equipoise, tmp_path, jobs=1, **SMALL | {"seeds": 1})
    assert len(comparison.finished) == 3


@pytest.mark.slow
def test_one_at_a_time_and_interrupted(equipoise, tmp_path):
    long = SMALL | {"epochs": 2000, "jobs": 2}
    comparison = ComparisonFolder(tmp_path / "compared")
    process = equipoise.start(tmp_path, "compare", out="compared", **long)
    until(lambda: any(comparison.path.glob("runs/*.unfinished/resume.ckpt")))
    program = [str(Path(sys.executable).with_name("equipoise")), "compare", "--out", "compared"]
    other = subprocess.run(
        [*program, *flags(long)], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert other.returncode == 2
    assert f"found process {process}; wait for it to end, or choose another --out" in other.stderr
    workers = children(process)
    assert len(workers) == 2
    os.killpg(process, signal.SIGINT)  # as a terminal does
    finished = equipoise.wait()
    assert finished.status == 1
    assert "interrupted; 0 of 6 runs are finished; run the same command again to resume" in finished.err
    assert "Traceback" not in finished.err
    assert all(map(is_over, workers))
    assert any(comparison.path.glob("runs/*.unfinished/resume.ckpt"))


def group(leader):
    """Running processes of a session: children, their children and orphans."""
    processes = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = file.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state not in "ZX":
            processes.append(int(file.parent.name))
    return processes


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux sees to it")
@pytest.mark.parametrize("how", ["SIGTERM", *slow("SIGINT to all", "SIGKILL")])
def test_no_process_is_left_running(equipoise, tmp_path, how):
    """Processes that decode images inherit the output, so a pipe would wait for them."""
    class_folders(tmp_path / "pictures", 12)
    comparison = ComparisonFolder(tmp_path / "compared")
    options = {"data": "pictures", "model": "linear", "epochs": 5000, "batch_size": 4, "workers": 2, "losses": "ce"}
    leader = equipoise.start(tmp_path, "compare", out="compared", jobs=2, seeds=2, accelerator="cpu", **options)
    until(lambda: len(list(comparison.path.glob("runs/*.unfinished/resume.ckpt"))) == 2)
    assert len(group(leader)) >= 7  # the command, two runs, and two workers of each at least
    if how == "SIGINT to all":
        os.killpg(leader, signal.SIGINT)  # as a terminal does
    else:
        os.kill(leader, signal.Signals[how])
    finished = equipoise.wait()
    end = time.monotonic() + 60
    while group(leader) and time.monotonic() < end:
        time.sleep(0.05)
    assert group(leader) == []
    if how != "SIGKILL":
        assert finished.status == 1
        assert "interrupted; 0 of 2 runs are finished; run the same command again to resume" in finished.err


def test_mistakes(whole, equipoise, tmp_path):
    """One message with all errors, and no new file."""
    comparison, _ = whole
    before, folder = contents(comparison.path), comparison.path.parent
    for options, words in (
        ({"losses": "ce focl", "epochs": 0}, ["2 mistakes", "losses.1", "did you mean 'focal'?", "epochs"]),
        (
            {"losses": "ce bce dice"},
            ["bce: loss must be for single-label", "dice: loss must be for single-label"],
        ),
        ({"data": "digit-lt"}, ["did you mean 'digits-lt'?"]),
        ({"lr": 0.5}, ["already holds a comparison with lr=None (this one has 0.5); choose another --out"]),
        ({"ray": "127.0.0.1:1", "seeds": 3}, ["--ray must be the address of a running cluster"]),
    ):
        place = "compared" if "lr" in options or "ray" in options else "new"
        if "ray" in options:
            pytest.importorskip("ray", reason="needs Ray: pip install ray")
        finished = equipoise(folder, "compare", out=place, **SMALL | options)
        assert finished.status == 2, finished
        assert "Traceback" not in finished.err
        assert finished.err.startswith("error: ")
        for word in words:
            assert word in finished.err
        assert not (folder / "new").exists()
    changed = dict(contents(comparison.path).items() ^ before.items())
    assert {file.name for file in changed} <= {"compare.log", ".lock"}


TASKS = {
    "multilabel": {"data": "digit-scenes", "model": "mlp", "epochs": 2, "losses": "bce,asl"},
    "segmentation": {
        "data": "digit-maps",
        "image_size": 16,
        "model": "unet",
        "model_options": ["width=4", "depth=1"],
        "epochs": 1,
        "batch_size": 16,
        "losses": "ce,recall",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_other_tasks(equipoise, tmp_path, task):
    comparison, _ = compared(equipoise, tmp_path, jobs=2, seeds=2, **TASKS[task])
    assert len(comparison.finished) == 4
    content = verdict(comparison)
    assert content["data"]["task"] == task
    assert content["baseline"] == TASKS[task]["losses"].partition(",")[0]
    assert all(len(row["seeds"]) == 2 for row in content["rows"])
    assert comparison.report.is_file()


@pytest.mark.slow
def test_ray_cluster_gives_the_result_of_this_machine(whole, equipoise, tmp_path):
    pytest.importorskip("ray", reason="needs Ray: pip install ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        comparison, finished = compared(equipoise, tmp_path, ray=cluster.address, **SMALL)
        assert "6/6 " in finished.out
        assert_same_comparison(comparison, whole[0])
    finally:
        cluster.shutdown()
