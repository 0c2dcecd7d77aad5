"""The ``equipoise report`` command."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.verdict import FORMAT
from equipoise.train.folder import write_json
from tests.cli.test_evaluate import refused, run
from tests.report.comparisons import read_verdict, write_comparison


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_comparison(tmp_path_factory.mktemp("compared") / "multiclass", losses=("ce", "recall"), seeds=2)


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made.path, tmp_path / "copy")
    return ComparisonFolder(tmp_path / "copy")


def test_report_is_written_to_the_folder(folder):
    ran = run("report", folder.path)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout == f"wrote {folder.report}\n"
    assert "<h1>2 losses compared on digits-lt</h1>" in folder.report.read_text(encoding="utf-8")


def test_tables_for_other_documents(folder, tmp_path):
    places = {flag: tmp_path / f"table.{flag}" for flag in ("csv", "latex", "markdown")}
    flags = [word for flag, place in places.items() for word in (f"--{flag}", place)]
    ran = run("report", folder.path, *flags, "--out", tmp_path / "page.html")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.splitlines() == [f"wrote {place}" for place in (*places.values(), tmp_path / "page.html")]
    assert not folder.report.exists()
    assert places["csv"].read_text().startswith("loss,chosen,seeds,metric,mean,std,difference")
    assert r"\begin{tabular}" in places["latex"].read_text()
    assert places["markdown"].read_text().startswith("| loss | accuracy |")


def test_metrics_of_the_tables(folder, tmp_path):
    ran = run("report", folder.path, "--markdown", tmp_path / "t.md", "--metrics", "ece, accuracy")
    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "t.md").read_text().startswith("| loss | ECE | accuracy |\n")
    assert "NLL" in folder.report.read_text(encoding="utf-8")  # the page has all
    page = folder.report.read_text(encoding="utf-8")
    assert "Further metrics" in page
    ran = run("report", folder.path, "--markdown", tmp_path / "t.md", "--metrics", "mce,mce_after,s99_share_after")
    assert (tmp_path / "t.md").read_text().startswith("| loss | MCE | MCE after | confidence above 0.99 after |\n")
    ran = run("report", folder.path, "--csv", tmp_path / "t", "--metrics", "x")
    refused(ran, "--metrics must be some of accuracy,", "got x")
    refused(run("report", folder.path, "--metrics", "ece"), "--metrics requires a table")


def test_current_verdict_is_reused(folder):
    """Whatever the modification times of the files."""
    write_json(folder.verdict, replace(read_verdict(folder), sentences=("Read, not made.",)).to_json())
    os.utime(folder.verdict, (0, 0))
    assert run("report", folder.path).exit_code == 0
    assert "Read, not made." in folder.report.read_text(encoding="utf-8")


def test_verdict_of_an_earlier_version_is_computed_again(folder):
    folder.verdict.write_text(json.dumps({"format": 1, "sentences": ["Of an earlier version."]}), encoding="utf-8")
    assert run("report", folder.path).exit_code == 0
    assert "Of an earlier version." not in folder.report.read_text(encoding="utf-8")
    assert read_verdict(folder).format == FORMAT


def test_runs_finished_later_are_included(folder):
    write_json(folder.verdict, replace(read_verdict(folder), sentences=("Of an earlier day.",)).to_json())
    file = folder.runs[0].folder.path / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"monitor_value": 0.25}))
    os.utime(file, (0, 0))
    assert run("report", folder.path).exit_code == 0
    assert "Of an earlier day." not in folder.report.read_text(encoding="utf-8")
    assert "Of an earlier day." not in read_verdict(folder).sentences


@pytest.mark.parametrize("content", ["{", '{"format": 2, "rows": 3}', '{"format": 4, "rows": 3}', '{"format": "4"}'])
def test_damaged_verdict_is_computed_again(folder, content):
    folder.verdict.write_text(content)
    assert run("report", folder.path).exit_code == 0
    assert read_verdict(folder).rows


@pytest.mark.parametrize(
    "name", ["compare.json", "runs/ce-0/run.json", "runs/ce-0/results.json", "runs/ce-0/history.jsonl"]
)
@pytest.mark.parametrize("content", ["{\n", "[]\n", '{"a": NaN}\n'])
def test_damaged_files_are_named(folder, name, content):
    folder.verdict.unlink()
    (folder.path / name).write_text(content)
    refused(run("report", folder.path), name, "again")


def test_runs_must_be_in_the_folder(folder):
    plan = json.loads(folder.plan.read_text())
    plan["runs"][0]["folder"] = "../elsewhere"
    folder.plan.write_text(json.dumps(plan))
    refused(run("report", folder.path), "compare.json: runs must lie in the folder runs, found '../elsewhere'")


def test_a_folder_that_was_moved(folder, tmp_path):
    moved = folder.path.rename(tmp_path / "moved")
    assert run("report", moved).exit_code == 0
    assert "--out moved" in (moved / "report.html").read_text(encoding="utf-8")


def test_folder_without_a_comparison(folder, tmp_path):
    refused(run("report", tmp_path / "nowhere"), "nowhere", "compare.json", "equipoise compare")
    refused(run("report", folder.runs[0].folder.path), "compare.json", "equipoise compare")


def test_no_finished_run(folder):
    shutil.rmtree(folder.path / "runs")
    folder.verdict.unlink()
    refused(run("report", folder.path), "at least one run must be finished")


def test_unwritable_output(folder, tmp_path):
    refused(run("report", folder.path, "--csv", tmp_path / "no" / "table.csv"), "must exist", "create it first")
    assert not folder.report.exists()


def test_neither_torch_nor_lightning_is_needed(folder):
    program = (
        "import sys\n"
        "from equipoise.cli.app import app\n"
        "app(['report', sys.argv[1]], standalone_mode=False)\n"
        "print({'torch', 'pytorch_lightning', 'torchmetrics'} & set(sys.modules))\n"
    )
    folder.verdict.unlink()  # a new one is no reason either
    ran = subprocess.run([sys.executable, "-c", program, folder.path], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "set()"
