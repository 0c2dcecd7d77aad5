"""Finished runs and comparisons of them with predictions made by hand; everything that follows from these is real."""

import json

import numpy as np

from equipoise.comparison.folder import ComparisonFolder, PlanEntry, PlannedRun
from equipoise.train.folder import RunFolder
from equipoise.train.outcome import judge

NOON = "2026-11-16T12:00:00+00:00"
MONITORS = {"multiclass": "mean_class_accuracy", "multilabel": "mean_average_precision", "segmentation": "mean_iou"}


def make_run(path, task, val, test, *, unknown=None, monitor=None, monitor_value=0.5, epochs=1, **about):
    """A finished run with these predictions: dicts of logits, targets, class_names and train_counts.

    ``unknown`` are logits of an open set; ``about`` is what else is known of the run.
    """
    folder = RunFolder(path)
    folder.predictions("test").parent.mkdir(parents=True)
    for split, arrays in (("val", val), ("test", test)):
        kept = np.float16 if task == "segmentation" else np.float32
        np.savez(folder.predictions(split), **(arrays | {"logits": arrays["logits"].astype(kept)}))
    if unknown is not None:
        np.savez(folder.predictions("open"), logits=unknown.astype(np.float32))
    judge(folder, lambda line: None)
    about = {"seconds_per_step": 0.01, "started": NOON, "finished": NOON} | about
    about |= {
        "data": {
            "name": "made",
            "task": task,
            "class_names": test["class_names"].tolist(),
            "train_counts": test["train_counts"].tolist(),
            "samples": {
                "train": int(test["train_counts"].sum()),
                "val": len(val["logits"]),
                "test": len(test["logits"]),
            },
        },
        "monitor": monitor or MONITORS[task],
        "monitor_value": monitor_value,
    }
    (folder.draft / "history.jsonl").write_text("".join(f'{{"epoch": {epoch}}}\n' for epoch in range(epochs)))
    (folder.draft / "run.json").write_text(json.dumps(about))
    folder.finish()
    return folder


def make_comparison(path, entries, seeds, predict, *, task="multiclass", baseline=None, failed=(), **options):
    """A comparison.

    Args:
        path: of its folder.
        entries: text of an entry to its candidates.
        seeds: of every loss.
        predict: (loss, seed) to arrays of validation and test, and options of ``make_run``.
        task: of the data.
        baseline: text of an entry, by default the first.
        failed: pairs of loss and seed that failed.
        options: of ``make_run``.
    """
    folder = ComparisonFolder(path)
    runs = [
        PlannedRun(loss, seed, RunFolder(path / "runs" / f"{loss.replace(':', '-')}-{seed}"))
        for loss in dict.fromkeys(loss for candidates in entries.values() for loss in candidates)
        for seed in seeds
    ]
    chosen = [PlanEntry(text, tuple(candidates)) for text, candidates in entries.items()]
    folder.write_plan({"seeds": list(seeds)}, chosen, baseline or chosen[0].text, runs)
    for run in runs:
        if (run.loss, run.seed) in failed:
            folder.write_failure(run, "the loss became nan in epoch 3; lower --lr", "what it said")
        else:
            val, test, own = predict(run.loss, run.seed)
            make_run(run.folder.path, task, val, test, **(options | own))
    return folder
