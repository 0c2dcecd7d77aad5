"""The ``equipoise evaluate`` command."""

import json
import pickle
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from equipoise.cli.app import app
from equipoise.evaluation import FORMAT, evaluate
from equipoise.predictions import open_predictions
from tests.predictions.saved import CASES, arrays_of, save


def run(*arguments, columns=80, **environment):
    return CliRunner().invoke(
        app, [str(each) for each in arguments], env={"COLUMNS": str(columns), "TERM": "dumb", **environment}
    )


def refused(ran, *words, names=()):
    """The command fails with one line on the problem, status 2, and no other output."""
    assert ran.exit_code == 2, ran.output
    assert isinstance(ran.exception, SystemExit)
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert ran.stderr.startswith("error: ")
    for word in (*words, *names):
        assert word in ran.stderr, ran.stderr


# What it prints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "form"), CASES)
def test_json_is_what_the_library_computes(tmp_path, task, form):
    path = save(tmp_path, form, arrays_of(task, samples=60))
    counts = "500,200,70,30,9,4"
    ran = run("evaluate", path, "--json", "--bootstrap", 10, "--seed", 5, "--bins", 8, "--train-counts", counts)
    assert ran.exit_code == 0, ran.output
    assert ran.stderr == ""
    evaluation = json.loads(ran.stdout, parse_constant=pytest.fail)
    expected = evaluate(
        open_predictions(path, train_counts=map(float, counts.split(","))), bootstrap=10, seed=5, bins=8
    )
    assert evaluation == expected.to_json()
    assert evaluation["format"] == FORMAT
    assert (evaluation["task"], evaluation["file"]) == (task, path.name)


def number_in(text, label, column=0):
    (cells,) = re.findall(rf"^{label} +([\d–].*)$", text, re.MULTILINE)
    return cells.replace(",", "").split()[column]


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
def test_the_table_holds_the_numbers(tmp_path, task):
    path = save(tmp_path, "npz", arrays_of(task))
    evaluation = evaluate(open_predictions(path))
    ran = run("evaluate", path)
    assert ran.exit_code == 0
    assert ran.stderr == ""
    label, name = {
        "multiclass": ("mean class accuracy", "mean_class_accuracy"),
        "multilabel": ("mAP", "mean_average_precision"),
        "segmentation": ("mean IoU", "mean_iou"),
    }[task]
    assert number_in(ran.stdout, label) == f"{100 * evaluation.overall[name]:.2f}"
    assert number_in(ran.stdout, "NLL") == f"{evaluation.overall['nll']:.4f}"
    assert number_in(ran.stdout, "NLL", 1) == f"{evaluation.calibration.after['nll']:.4f}"
    assert number_in(ran.stdout, "ECE", 1) == f"{100 * evaluation.calibration.after['ece']:.2f}"
    for row in evaluation.groups:
        assert number_in(ran.stdout, row.name, 2) == f"{100 * row.metrics[evaluation.main]:.2f}"
        assert number_in(ran.stdout, row.name, 3) == f"{100 * row.metrics['ece']:.2f}"
    worst = min(evaluation.per_class, key=lambda row: row.metrics[evaluation.main])
    first = next(line for line in ran.stdout.splitlines() if line.startswith("kind "))
    assert first.startswith(worst.name)
    assert f"{100 * worst.metrics[evaluation.main]:.2f}" in first
    assert "fitted on the other half of the samples" in " ".join(ran.stdout.split())


GIVEN_THE_TRUTH = "samples whose true class is in it"


def test_the_temperature_by_the_calibration_error(tmp_path):
    arrays = arrays_of("multiclass", samples=60)
    path = save(tmp_path, "npz", arrays | {"logits": 3 * arrays["logits"]})
    ran = run("evaluate", path, "--json", "--temperature-by", "ece")
    assert json.loads(ran.stdout) == evaluate(open_predictions(path), temperature_by="ece").to_json()
    page = tmp_path / "page.html"
    ran = run("evaluate", path, "--temperature-by", "ece", "--html", page, columns=120)
    assert "Temperature scaling by ECE, fitted on the other half of the samples" in " ".join(ran.stdout.split())
    assert "fitted on the other half, by ECE." in page.read_text(encoding="utf-8")
    before, after = (float(number_in(ran.stdout, "confidence above 0.99", column)) for column in (0, 1))
    assert after < before
    refused(run("evaluate", path, "--temperature-by", "mce"), "temperature_by must be one of 'nll', 'ece', got 'mce'")


def test_two_kinds_of_calibration_error_have_two_names(tmp_path):
    output = run("evaluate", save(tmp_path, "npz", arrays_of("multiclass")), columns=200).stdout
    assert re.search("^training samples .* ECE$", output, re.MULTILINE)
    assert re.search("^worst classes .* classwise ECE$", output, re.MULTILINE)
    assert GIVEN_THE_TRUTH in output
    labels = run("evaluate", save(tmp_path, "npz", arrays_of("multilabel"), "multilabel"), columns=200).stdout
    assert re.search("^worst labels .* F1 +ECE$", labels, re.MULTILINE)
    assert GIVEN_THE_TRUTH not in labels


def test_unknown_labels_are_counted(tmp_path):
    arrays = arrays_of("multilabel", samples=50)
    unknown = int((arrays["targets"] == -1).sum())
    output = run("evaluate", save(tmp_path, "npz", arrays), columns=200).stdout
    assert unknown > 5
    assert output.count(f"; {unknown} of 300 targets unknown") == 1
    arrays["targets"] = abs(arrays["targets"])
    first = run("evaluate", save(tmp_path, "npz", arrays), columns=200).stdout.splitlines()[0]
    assert first == output.splitlines()[0].replace(f"; {unknown} of 300 targets unknown", "")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
def test_table_fits_the_terminal_without_truncation(tmp_path, task, columns):
    ran = run("evaluate", save(tmp_path, "npz", arrays_of(task, samples=60)), "--bootstrap", 20, columns=columns)
    assert max(map(len, ran.stdout.splitlines())) <= columns
    assert "…" not in ran.stdout


@pytest.mark.parametrize(("worst", "rows"), [(0, 0), (2, 2), (50, 6)])
def test_as_many_of_the_worst_classes_as_asked(tmp_path, worst, rows):
    ran = run("evaluate", save(tmp_path, "npz", arrays_of("multiclass")), "--worst", worst)
    assert len(re.findall("^kind ", ran.stdout, re.MULTILINE)) == rows


def test_intervals_are_printed_beside_their_values(tmp_path):
    path = save(tmp_path, "npz", arrays_of("multiclass"))
    low, high = evaluate(open_predictions(path), bootstrap=30).intervals["accuracy"]
    printed = run("evaluate", path, "--bootstrap", 30).stdout
    assert f"{100 * low:.2f} – {100 * high:.2f}" in printed
    heads = [re.split(r"\s{2,}", text.splitlines()[1].strip()) for text in (printed, run("evaluate", path).stdout)]
    assert heads[1] == [head for head in heads[0] if head != "95 % CI"] != heads[0]


def test_markup_in_class_names_is_escaped(tmp_path):
    names = ["[red]", "[/]", ":smile:", "a\\", "<b>", "[link=x]y"]
    arrays = arrays_of("multiclass") | {"class_names": np.array(names)}
    arrays["targets"][arrays["targets"] == 0] = 1  # the first has no sample and is named in a sentence
    ran = run("evaluate", save(tmp_path, "npz", arrays), "--worst", 6)
    assert ran.exit_code == 0
    for name in names:
        assert name in ran.stdout


def test_zero_and_missing_numbers(tmp_path):
    probs = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]] * 20)
    path = save(tmp_path, "npz", {"probs": probs, "targets": np.array([1, 0] * 20)})
    ran = run("evaluate", path, columns=300)
    assert float(number_in(ran.stdout, "NLL")) == pytest.approx(14.1621, abs=1e-4)
    assert "20 of 40 samples have probability 0 for the truth" in ran.stdout
    evaluation = json.loads(run("evaluate", path, "--json").stdout, parse_constant=pytest.fail)
    kept = run("calibrate", path, "--out", tmp_path / "fit.json", "--on", path, "--json").stdout
    assert json.loads(kept)["before"]["nll"] == evaluation["overall"]["nll"]  # the same number of both commands
    assert json.loads(kept)["notes"] == evaluation["notes"]
    assert evaluation["per_class"][2]["accuracy"] is None


def test_progress_is_shown_on_a_terminal_only(tmp_path):
    path = save(tmp_path, "npz", arrays_of("multiclass"))
    assert "reading saved.npz" in run("evaluate", path, FORCE_COLOR="1", TERM="xterm").stderr
    assert run("evaluate", path).stderr == ""


# Options --------------------------------------------------------------------------------------------------------------


def test_counts_from_files_and_words(tmp_path):
    path = save(tmp_path, "npz", arrays_of("multiclass", counts=False))
    np.save(tmp_path / "counts.npy", np.array([500, 200, 70, 30, 9, 4]))
    (tmp_path / "counts.txt").write_text("500 200\n70 30\n9 4\n")
    given = ["500,200,70,30,9,4", tmp_path / "counts.npy", tmp_path / "counts.txt"]
    outputs = {run("evaluate", path, "--train-counts", counts).stdout for counts in given}
    assert len(outputs) == 1
    groups = re.compile("^(training samples|many|medium|few) ", re.MULTILINE)
    assert groups.findall(outputs.pop()) == ["training samples", "many", "medium", "few"]
    assert groups.findall(run("evaluate", path).stdout) == []


def test_task_that_shapes_do_not_determine(tmp_path):
    """Scores of one binary label are multi-label data only if the user says so."""
    arrays = {"logits": np.array([[1.0], [-1.0]] * 20), "targets": np.array([[1], [0]] * 20)}
    ran = run("evaluate", save(tmp_path, "npz", arrays), "--task", "multilabel")
    assert ran.exit_code == 0, ran.output
    assert number_in(ran.stdout, "mAP") == "100.00"


def test_ignore_index(tmp_path):
    arrays = arrays_of("segmentation", samples=10)
    arrays["targets"] = np.where(arrays["targets"] < 0, 255, arrays["targets"]).astype(np.uint8)
    path = save(tmp_path, "npz", arrays)
    evaluation = json.loads(run("evaluate", path, "--ignore-index", 255, "--json").stdout)
    assert sum(row["support"] for row in evaluation["per_class"]) == (arrays["targets"] != 255).sum()


@pytest.mark.parametrize("option", [("--bins", "0"), ("--bootstrap", "-1"), ("--seed", "-1"), ("--worst", "x")])
def test_options_out_of_range(tmp_path, option):
    ran = run("evaluate", save(tmp_path, "npz", arrays_of("multiclass")), *option)
    assert ran.exit_code == 2
    assert option[0] in ran.stderr
    assert "Traceback" not in ran.stderr


def test_help_names_every_format():
    text = " ".join(run("evaluate", "--help", columns=200).stdout.split())
    for word in (".npz", ".npy", ".csv", ".parquet", "logit_<class>", "target_<class>", "--bootstrap", "--html"):
        assert word in text


# The command itself ---------------------------------------------------------------------------------------------------


def command(*arguments, cwd):
    program = "from equipoise.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
    )


def test_report_from_the_command(tmp_path):
    arrays = arrays_of("multiclass") | {"class_names": np.array(["日本", "ü", "c", "d", "e", "f"])}
    save(tmp_path, "npz", arrays, "my file")
    ran = command("evaluate", "my file.npz", "--html", "page.html", "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "wrote page.html\n"  # stdout is JSON alone
    json.loads(ran.stdout)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "equipoise evaluate &#39;my file.npz&#39; --html page.html --json" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my file.npz", "page.html"]


def test_bad_input_from_the_command(tmp_path):
    (tmp_path / "x.npz").write_text("hello")
    ran = command("evaluate", "x.npz", "--html", "page.html", cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert re.fullmatch(r"error: x\.npz: [^\n]+\n", ran.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


# Bad input ------------------------------------------------------------------------------------------------------------


def changed(task="multiclass", **changes):
    """Valid arrays with some of them changed, or removed if the change is None."""
    probs = "probs" in changes and "logits" not in changes
    arrays = arrays_of(task, samples=20, probs=probs)
    for name, change in changes.items():
        value = change(arrays[name].copy()) if callable(change) else change
        arrays[name] = value
    return {name: value for name, value in arrays.items() if value is not None}


def put(index, value):
    def change(array):
        array = array.astype(np.result_type(array, np.min_scalar_type(value))) if array.dtype.kind != "f" else array
        array[index] = value
        return array

    return change


BAD_ARRAYS = {
    "NaN logits": (changed(logits=put((7, 2), np.nan)), "masked class, found nan at sample 7", "(2,)"),
    "infinite logits": (
        changed(logits=put((7, 2), np.inf)),
        "logits must be finite",
        "masked class, found inf",
        "sample 7",
    ),
    "masked logits": (changed(logits=put(7, -np.inf)), "a class that is not masked", "found only -inf at sample 7"),
    "NaN probabilities": (changed(probs=put((3, 1), np.nan)), "probs must be finite, found nan", "sample 3"),
    "target too large": (
        changed(targets=put(4, 6)),
        "targets must be class indices from 0 to 5",
        "found 6 at sample 4",
    ),
    "target below 0": (changed(targets=put(4, -1)), "found -1 at sample 4", "--ignore-index"),
    "target of a pixel": (
        changed("segmentation", targets=put((4, 1, 2), 9)),
        "found 9 at sample 4, position (1, 2)",
        "check the labels",
    ),
    "soft labels": (
        changed("multilabel", targets=lambda t: t * 0.5 + 0.1),
        "targets must be 0, 1 or -1 (unknown)",
        "--task multiclass",
    ),
    "sums": (
        changed(probs=lambda p: p * 0.9),
        "probs must sum to 1 over the classes, found 0.9 at sample 0",
        "softmax",
    ),
    "one decimal": (
        changed(probs=lambda p: p.round(1)),
        "probs must sum to 1 over the classes",
        "they look rounded",
        "probs / probs.sum(1, keepdims=True)",
    ),
    "NaN for unknown": (
        changed("multilabel", targets=lambda t: np.where(t < 0, np.nan, t)),
        "found nan at sample",
        "write -1 for unknown",
    ),
    "logits called probs": (
        changed(probs=lambda p: p * 9 - 3),
        "probs must be between 0 and 1",
        "call the array logits",
    ),
    "no targets": (changed(targets=None), "either logits or probs, and targets, found", "class_names"),
    "no scores": (changed(logits=None), "either logits or probs", "numpy.savez"),
    "both scores": (changed(logits=np.zeros((20, 6)), probs=np.zeros((20, 6))), "either logits or probs", "targets"),
    "fewer targets": (changed(targets=lambda t: t[:-1]), "as many samples", "(20, 6) and targets (19,)"),
    "other shapes": (changed(targets=np.zeros((20, 5), int)), "the shapes tell no task", "(20, 5)"),
    "a vector of scores": (changed(logits=np.zeros(20)), "scores must be (N, C)", "found (20,)"),
    "a single number": (changed(targets=np.array(3)), "as many samples", "targets ()"),
    "no samples": (changed(logits=np.zeros((0, 6)), targets=np.zeros(0, int)), "at least one sample", "(0, 6)"),
    "no classes": (changed(logits=np.zeros((20, 0))), "at least one sample and one class", "(20, 0)"),
    "one class": (
        changed(logits=np.zeros((20, 1)), targets=np.zeros(20, int)),
        "at least two classes",
        "--task multilabel",
    ),
    "whole scores": (changed(logits=np.zeros((20, 6), int)), "logits must be floating point", "int64"),
    "targets with fractions": (changed(targets=lambda t: t + 0.5), "integers from 0, found", "number the classes"),
    "targets in words": (changed(targets=lambda t: t.astype(str)), "targets must be numbers", "class indices"),
    "pickled scores": (changed(logits=lambda z: z.astype(object)), "logits", "pickled Python objects", "can run code"),
    "pickled names": (changed(class_names=np.array(["a"] * 6, object)), "class_names", "pickled Python objects"),
    "too few names": (changed(class_names=np.array(["a", "b"])), "class_names must be 6 strings", "(2,)"),
    "names in numbers": (changed(class_names=np.arange(6)), "class_names must be 6 strings", "int64"),
    "too few counts": (
        changed(train_counts=np.ones(5)),
        "one number for each of the 6 classes, got 5",
        "0 for a class",
    ),
    "negative counts": (changed(train_counts=np.array([1, 2, 3, 4, 5, -1])), "finite and not negative", "recount"),
    "counts in words": (changed(train_counts=np.array(["a"] * 6)), "train_counts must be a vector of numbers", "(6,)"),
    "only ignored": (changed(targets=np.full(20, -100)), "at least one target that counts", "--ignore-index"),
}


@pytest.mark.parametrize("form", ["npz", "folder"])
@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays(tmp_path, case, form):
    arrays, *words = BAD_ARRAYS[case]
    path = save(tmp_path, form, arrays)
    ran = run("evaluate", path, "--html", tmp_path / "page.html", "--bootstrap", 3)
    refused(ran, *words, names=[path.name])
    assert list(tmp_path.iterdir()) == [path]


GOOD_CSV = "logit_cat,logit_dog,target\n1,2,cat\n0,1,dog\n"
BAD_TEXTS = {
    "nothing.npz": (b"", "found it empty"),
    "nothing.csv": (b"", "found it empty"),
    "nothing.parquet": (b"", "found it empty"),
    "text.npz": (b"these are no arrays\n", "must be an .npz archive", "numpy.savez"),
    "pickle.npz": (pickle.dumps({"logits": [1]}), "must be an .npz archive"),
    "text.parquet": (GOOD_CSV.encode(), "cannot be read as .parquet", "write it again"),
    "blank.csv": (b"\n\n", "blank.csv"),
    "header.csv": (b"logit_cat,logit_dog,target\n", "at least one sample, found none"),
    "no-target.csv": (b"logit_cat,logit_dog\n1,2\n", "there must be a column target", "add the true labels"),
    "no-scores.csv": (b"cat,dog,target\n1,2,cat\n", "columns logit_<class> or prob_<class>", "cat, dog, target"),
    "both.csv": (b"logit_cat,prob_cat,target\n1,0.5,cat\n", "(one kind)", "rename"),
    "one-class.csv": (b"logit_cat,target\n1,cat\n", "at least two classes", "logit_cat"),
    "twice.csv": (b"logit_cat,logit_cat,target\n1,2,cat\n", "a name of its own, found 'logit_cat' twice"),
    "half-labels.csv": (b"logit_a,logit_b,target_a\n1,2,1\n", "a target column for each label", "target_b"),
    "unknown.csv": (b"logit_cat,logit_dog,target\n1,2,dgo\n", "found 'dgo'; did you mean 'dog'?"),
    "number.csv": (b"logit_cat,logit_dog,target\n1,2,7\n", "from 0 to 1", "found 7 at sample 0"),
    "words.csv": (b"logit_cat,logit_dog,target\n1,2,cat\n1,two,cat\n", "'two'", "check that row"),
    "gap.csv": (b"logit_cat,logit_dog,target\n1,2,cat\n1,,cat\n", "masked class, found nan at sample 1"),
    "ragged.csv": (b"logit_cat,logit_dog,target\n1,2,cat\n1,2\n", "Expected 3 columns, got 2"),
    "latin.csv": ("logit_é,logit_b,target\n1,2,é\n".encode("latin-1"), "latin.csv"),
    "semicolons.csv": (b"logit_cat;logit_dog;target\n1;2;cat\n", "looks like ';'", "with commas"),
    "decimal-commas.csv": (b'"logit_cat";"logit_dog";"target"\n1,5;2,5;cat\n', "looks like ';'", "points in numbers"),
    "tabs.csv": (b"prob_cat\tprob_dog\ttarget\n1\t0\tcat\n", "looks like a tab"),
    "empty-target.csv": (b"logit_cat,logit_dog,target\n1,2,\n", "found nothing", "write -100"),
    "sums.csv": (b"prob_cat,prob_dog,target\n0.5,0.6,cat\n", "probs must sum to 1", "found 1.1"),
    "table.xlsx": (b"PK\x03\x04", "found the suffix '.xlsx'", ".npz with logits or probs"),
    "table.CSV": (GOOD_CSV.encode(), "found the suffix '.CSV'"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_files(tmp_path, name):
    content, *words = BAD_TEXTS[name]
    path = tmp_path / name
    path.write_bytes(content)
    refused(run("evaluate", path, "--html", tmp_path / "page.html"), *words, names=[name])
    assert list(tmp_path.iterdir()) == [path]


def test_valid_csv_is_accepted(tmp_path):
    (tmp_path / "good.csv").write_text(GOOD_CSV)
    assert run("evaluate", tmp_path / "good.csv").exit_code == 0


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("compressed", [False, True])
def test_truncated_npz(tmp_path, compressed, share):
    path = tmp_path / "half.npz"
    (np.savez_compressed if compressed else np.savez)(path, **arrays_of("multiclass"))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(run("evaluate", path), "half.npz", "write it again")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_npz(tmp_path, compressed):
    path = tmp_path / "damaged.npz"
    (np.savez_compressed if compressed else np.savez)(path, **arrays_of("multiclass"))
    content = bytearray(path.read_bytes())
    content[1000:1400] = bytes(400)
    path.write_bytes(content)
    refused(run("evaluate", path), "damaged.npz: logits cannot be read", "write it again")


def test_an_npy_called_npz(tmp_path):
    with (tmp_path / "x.npz").open("wb") as file:
        np.save(file, np.zeros((3, 2)))
    refused(run("evaluate", tmp_path / "x.npz"), "must be an .npz archive")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated_parquet(tmp_path, share):
    path = save(tmp_path, "parquet", arrays_of("multiclass"))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(run("evaluate", path), "saved.parquet", "write it again")


def test_a_damaged_parquet(tmp_path):
    path = save(tmp_path, "parquet", arrays_of("multiclass"), compression="snappy")
    content = bytearray(path.read_bytes())
    content[4:3000] = bytes(2996)
    path.write_bytes(content)
    refused(run("evaluate", path), "saved.parquet", "write it again")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(["a", "b"]), "column 'logit_dog' must hold numbers"),
        (pa.array([[1.0], [2.0]]), "column 'logit_dog' must hold numbers"),
        (pa.array([1.0, None]), "masked class, found nan at sample 1"),
    ],
)
def test_non_numeric_columns_of_parquet(tmp_path, column, words):
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(pa.table({"logit_cat": [1.0, 2.0], "logit_dog": column, "target": ["cat", "dog"]}), path)
    refused(run("evaluate", path), words, "t.parquet")


def test_a_truncated_array_of_a_folder(tmp_path):
    path = save(tmp_path, "folder", arrays_of("multiclass"))
    content = (path / "logits.npy").read_bytes()
    for length in (0, 5, len(content) // 2):
        (path / "logits.npy").write_bytes(content[:length])
        refused(run("evaluate", path), "logits.npy cannot be read")


def test_missing_files_of_evaluate(tmp_path):
    refused(run("evaluate", tmp_path / "gone.npz"), "gone.npz", "no such file")
    (tmp_path / "bare").mkdir()
    refused(run("evaluate", tmp_path / "bare"), "bare", "found nothing", "logits or probs")


def test_array_larger_than_memory_gives_advice_to_use_a_folder(tmp_path, monkeypatch):
    path = save(tmp_path, "npz", arrays_of("multiclass"))

    def full(file, **options):
        raise MemoryError

    monkeypatch.setattr(np.lib.format, "read_array", full)
    refused(run("evaluate", path), "does not fit into memory", "a folder of .npy files")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--task", "triple"), "--task must be one of 'multiclass', 'multilabel', 'segmentation', got 'triple'"),
        (("--task", "multilabel"), "--task multilabel needs targets of shape (20, 6)"),
        (("--task", "segmentation"), "--task segmentation needs targets"),
        (("--train-counts", "1,2"), "one number for each of the 6 classes, got 2"),
        (("--train-counts", "1,x,3"), "counts must be numbers with commas"),
        (("--train-counts", "gone.npy"), "gone.npy"),
        (("--train-counts", "1,2,3,4,5,-6"), "finite and not negative"),
        (("--html", "missing/page.html"), "the folder 'missing' must exist, found none; create it first"),
        (("--html", "taken"), "there is a folder of that name"),
    ],
)
def test_bad_options(tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    path = save(tmp_path, "npz", changed())
    refused(run("evaluate", path, *options), words)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["saved.npz", "taken"]
