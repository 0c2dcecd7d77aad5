"""Post-hoc calibration of real models, fitted on one half of their test data and scored on the other, both ways.

    python -m experiments.calibration PROBS [--features FEATURES] [--json FILE] [--page docs/calibration.md]

PROBS is a folder of ``.npz`` files with ``probs`` (N, C) and ``labels`` (N,); FEATURES one of multi-label sets, on
which a small network is trained: ``X_train`` and ``X_test``, or where features are binary ``X_train_bits`` and
``X_test_bits`` by ``np.packbits(x, axis=1)``, ``Y_train`` and ``Y_test`` packed likewise, ``n_features`` and
``n_labels``. The page gets the tables between its markers; ``--json FILE --page PAGE`` without PROBS writes it from a
recorded run.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import equipoise as eq
from equipoise import calibration
from equipoise.metrics.binning import bin_sums, binned_error

METHODS = ("temperature", "temperature-ece", "vector", "dirichlet", "isotonic", "histogram")
SETS = ("yeast", "enron", "bibtex", "tmc2007_500")
RESULTS = Path(__file__).parent / "results" / "calibration.json"
Scores = dict[str, float]
Record = dict[str, Any]


def main() -> None:
    """Run, record, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probs", nargs="?", type=Path)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.probs:
        record = {"versions": versions(), "networks": {}, "shift": {}, "labels": {}}
        for path in sorted(given.probs.glob("*.npz")):
            say(path.stem)
            record["networks"][path.stem] = network(*read(path))
            record["shift"][path.stem] = shift(*read(path))
        for name in SETS if given.features else ():
            say(name)
            record["labels"][name] = {loss: labels(given.features / f"{name}.npz", loss) for loss in ("bce", "asl")}
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    record = json.loads(given.json.read_text())
    tables = write_tables(record)
    if given.page:
        given.page.write_text(fill(given.page.read_text(), tables))
    for table in tables.values():
        say(table + "\n")


# ---------------------------------------------------------------------------------------------------------------------
# Networks with one label
# ---------------------------------------------------------------------------------------------------------------------


def read(path: Path) -> tuple[Tensor, Tensor]:
    """Probabilities and labels of a network."""
    with np.load(path, allow_pickle=False) as archive:
        return torch.tensor(archive["probs"]), torch.tensor(archive["labels"].astype(np.int64))


def network(probs: Tensor, targets: Tensor) -> Record:
    """Scores as given, and on either half after a fit on the other."""
    logits = calibration.logits_from_probs(probs)
    whole = scores(logits, targets)
    confidence, chosen = probs.max(1)  # not normalised again
    whole["ece"] = float(binned_error(bin_sums(confidence, chosen == targets, 15)))
    # rounding may leave confidences above 1, which code with a last bin up to 1 puts nowhere
    inside = confidence <= 1
    kept_error = float(binned_error(bin_sums(confidence, chosen == targets, 15, valid=inside)))
    whole["ece_up_to_one"] = kept_error * float(inside.double().mean())
    whole["above_one"] = int((~inside).sum())
    record: Record = {"rows": len(targets), "classes": probs.shape[1], "given": whole, "before": [], "temperatures": []}
    record["after"] = {name: [] for name in METHODS}
    for kept, held in halves(len(targets)):
        record["before"].append(scores(logits[held], targets[held]))
        for name in METHODS:
            fitted = fit(name, logits[kept], targets[kept])
            record["after"][name].append(scores(fitted(logits[held]), targets[held]))
            if name == "temperature":
                record["temperatures"].append(fitted.temperature)  # type: ignore[attr-defined]
    return record


def shift(probs: Tensor, targets: Tensor) -> Record:
    """The held-out half thinned to a long tail of 20 to 1: vector scaling, then with the prior estimated or known."""
    logits, classes = calibration.logits_from_probs(probs), probs.shape[1]
    share = 20.0 ** -(torch.arange(classes, dtype=torch.float64) / (classes - 1))
    scores_by_fit: Record = {name: [] for name in ("before", "vector", "estimated", "known")}
    for kept, held in halves(len(targets)):
        lucky = torch.rand(len(held), generator=torch.Generator().manual_seed(1)) < share[targets[held]]
        rows = held[lucky]
        train = torch.bincount(targets[kept], minlength=classes)
        target = torch.bincount(targets[rows], minlength=classes).clamp(min=1)
        scaled = fit("vector", logits[kept], targets[kept])(logits[rows])
        options: list[tuple[str, Tensor]] = [("before", logits[rows]), ("vector", scaled)]
        options.append(("estimated", calibration.correct_prior(scaled, train_counts=train)))
        options.append(("known", calibration.correct_prior(scaled, train_counts=train, target_prior=target)))
        for name, after in options:
            scores_by_fit[name].append(scores(after, targets[rows]))
    return scores_by_fit


def scores(logits: Tensor, targets: Tensor) -> Scores:
    """Accuracy, ECE of 15 bins and mean negative log-likelihood."""
    log_p = logits.double().log_softmax(1)
    top, chosen = log_p.max(1)
    right = chosen == targets
    return {
        "accuracy": float(right.double().mean()),
        "ece": float(binned_error(bin_sums(top.exp(), right, 15))),
        "nll": float(-log_p.gather(1, targets[:, None]).mean()),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Many labels
# ---------------------------------------------------------------------------------------------------------------------


def labels(path: Path, loss: str) -> Record:
    """A small network trained with ``loss``: likelihood after label temperatures, F1 after thresholds."""
    logits, targets = train(path, eq.BinaryCrossEntropyLoss() if loss == "bce" else eq.AsymmetricLoss())
    record: Record = {"rows": len(logits), "labels": logits.shape[1]}
    names = ("nll", "nll_temperatures", "nll_biases", "nll_isotonic", "f1", "f1_thresholds", "f1_seen", "f1_expected")
    errors: dict[str, list[float]] = {name: [] for name in names}
    for kept, held in halves(len(logits)):
        plain = fit("label-temperatures", logits[kept], targets[kept])
        biased = fit("label-temperatures", logits[kept], targets[kept], bias=True)
        isotonic = fit("isotonic", logits[kept], targets[kept])
        chosen = fit("thresholds", logits[kept], targets[kept])
        assert isinstance(chosen, calibration.Thresholds)
        z, y = logits[held], targets[held]
        values = [binary_nll(after(z), y) for after in (lambda z: z, plain, biased, isotonic)]
        values += [macro_f1(z > 0, y), macro_f1(chosen.decide(z), y)]
        values += [macro_f1(chosen.decide(logits[kept]), targets[kept]), chosen.macro_f1]
        for name, value in zip(names, values, strict=True):
            errors[name].append(value)
    return record | errors


def train(path: Path, loss: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """Logits and targets on the test set, after 15 epochs of a hidden layer of 128."""
    with np.load(path, allow_pickle=False) as archive:
        sizes = {"X": int(archive["n_features"]), "Y": int(archive["n_labels"])}

        def part(name: str) -> Tensor:
            packed = name if name in archive.files and name[0] == "X" else f"{name}_bits" if name[0] == "X" else name
            values = archive[packed]
            if packed != name or name[0] == "Y":
                values = np.unpackbits(values, axis=1)[:, : sizes[name[0]]]
            return torch.tensor(values.astype(np.float32))

        x, y, new_x, new_y = (part(name) for name in ("X_train", "Y_train", "X_test", "Y_test"))
    mean, deviation = x.mean(0), x.std(0).clamp(min=0.1)
    x, new_x = (x - mean) / deviation, (new_x - mean) / deviation
    torch.manual_seed(0)
    layers = [torch.nn.Linear(x.shape[1], 128), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(128, y.shape[1])]
    net = torch.nn.Sequential(*layers)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    for _ in range(15):
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            optimiser.step()
    with torch.no_grad():
        return net.eval()(new_x), new_y


def binary_nll(logits: Tensor, targets: Tensor) -> float:
    """Mean over rows and labels."""
    return float(torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), targets.double()))


def macro_f1(chosen: Tensor, targets: Tensor) -> float:
    """Mean F1 of the labels with positives."""
    positive = targets == 1
    f1 = 2.0 * (chosen & positive).sum(0) / (chosen.sum(0) + positive.sum(0)).clamp(min=1)
    return float(f1[positive.any(0)].mean())


# ---------------------------------------------------------------------------------------------------------------------
# Both
# ---------------------------------------------------------------------------------------------------------------------


def halves(rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Fit on one, score on the other, and the other way round."""
    first, second = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).chunk(2)
    yield first, second
    yield second, first


def fit(name: str, logits: Tensor, targets: Tensor, **options: object) -> calibration.Fitted:
    """Fit a method of the registry; its remarks are of no interest here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", calibration.CalibrationWarning)
        return calibration.METHODS[name].fit(logits, targets, **options)


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    packages = ("torch", "numpy", "scipy", "scikit-learn")
    return {
        "equipoise": eq.__version__,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def mean(values: list[Scores], key: str) -> float:
    """Of the two halves."""
    return sum(each[key] for each in values) / len(values)


def write_tables(record: Record) -> dict[str, str]:
    """The tables of the page by the name of their markers."""
    tables = {"networks": networks_table(record["networks"])}
    for key in ("nll", "ece", "accuracy"):
        tables[key] = methods_table(record["networks"], key)
    tables["shift"] = shift_table(record["shift"])
    if record["labels"]:
        tables["labels"] = labels_table(record["labels"])
    return tables


def networks_table(networks: Record) -> str:
    """Every network as given, and after temperature scaling on held-out halves."""
    head = ["network", "rows", "classes", "accuracy", "ECE", "NLL", "T", "ECE after", "NLL after"]
    rows = []
    for name, each in networks.items():
        given, after = each["given"], each["after"]["temperature"]
        temperatures = ", ".join(f"{t:.3f}" for t in each["temperatures"])
        row = [name, str(each["rows"]), str(each["classes"]), f"{given['accuracy']:.4f}", f"{given['ece']:.4f}"]
        rows.append(
            [*row, f"{given['nll']:.4f}", temperatures, f"{mean(after, 'ece'):.4f}", f"{mean(after, 'nll'):.4f}"]
        )
    return table(head, rows)


def methods_table(networks: Record, key: str) -> str:
    """One score of every method; the best of a row is bold."""
    names = ("before", *METHODS)
    rows = []
    for name, each in networks.items():
        values = [mean(each["before"], key), *(mean(each["after"][method], key) for method in METHODS)]
        best = (max if key == "accuracy" else min)(f"{value:.4f}" for value in values)
        rows.append([name, *(f"**{v:.4f}**" if f"{v:.4f}" == best else f"{v:.4f}" for v in values)])
    return table(["network", *names], rows)


def shift_table(shift: Record) -> str:
    """Accuracy and likelihood under shifted class frequencies."""
    names = ("before", "vector", "estimated", "known")
    rows = [
        [name, *(f"{mean(each[k], 'accuracy'):.3f} / {mean(each[k], 'nll'):.3f}" for k in names)]
        for name, each in shift.items()
    ]
    return table(["network", "before", "vector", "+ prior by EM", "+ prior known"], rows)


def labels_table(labels: Record) -> str:
    """Likelihood and F1 of multi-label networks."""
    head = ["data, loss", "labels", "NLL", "temperatures", "with biases", "isotonic"]
    head += ["F1 at 1/2", "F1 at thresholds", "expected", "on the fit data"]
    keys = ("nll", "nll_temperatures", "nll_biases", "nll_isotonic", "f1", "f1_thresholds", "f1_expected", "f1_seen")
    rows = []
    for name, losses in labels.items():
        for loss, each in losses.items():
            rows.append([f"{name}, {loss}", str(each["labels"]), *(f"{sum(each[k]) / 2:.4f}" for k in keys)])
    return table(head, rows)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fill(page: str, tables: dict[str, str]) -> str:
    """Put each table between ``<!-- name -->`` and ``<!-- end -->``."""
    for name, text in tables.items():
        before, rest = page.split(f"<!-- {name} -->\n")
        _, after = rest.split("<!-- end -->", 1)
        page = f"{before}<!-- {name} -->\n{text}\n<!-- end -->{after}"
    return page


def say(line: str) -> None:
    """To the terminal."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
