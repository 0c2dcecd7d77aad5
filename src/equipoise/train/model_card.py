"""The page that goes with an exported model: what it learnt, how good it is, how it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise._suggestions import some
from equipoise.metric_registry import metric_info
from equipoise.tasks import Task

__all__ = ["model_card"]

INPUTS = {
    "images": "a uint8 array (N, channels, height, width) or (N, height, width, channels), pillow's images, or files",
    "features": "an array (N, D) of the features of training in their order",
    "tokens": "a list of texts",
}
OUTPUTS = {
    Task.MULTICLASS: ("(N, C), they sum to 1", "a class name for each sample"),
    Task.MULTILABEL: ("(N, C), one for each label", "a list of labels for each sample"),
    Task.SEGMENTATION: ("(N, C, H, W), they sum to 1", "label maps (N, H, W) of class numbers"),
}


def model_card(about: Mapping[str, Any]) -> str:
    """Markdown from the content of ``model.json``."""
    training, model, names = about["training"], about["model"], about["class_names"]
    samples, counts, method = training["samples"], training["train_counts"], model.get("method", "none")
    task = Task(about["task"])
    probabilities, decisions = OUTPUTS[task]
    trust = ", trust_code=True" if model["name"].startswith("model.py:") else ""
    best = f", the best on {samples['val']:,} validation samples" if training["checkpoint"] == "best" else ""
    parts = [
        f"# {model['name']} on {training['data']}",
        f"Task: {task.label}. Trained with equipoise {about['equipoise']} on {samples['train']:,} samples; "
        f"the weights are those of epoch {training['chosen_epoch']} of {training['epochs']}{best}.",
        "\n".join(
            [
                f"- model: `{model['name']}`, {model['parameters']:,} weights",
                f"- loss: `{training['loss']}`" if method == "none" else f"- method: `{method}`",
                f"- {len(names)} classes: {some(names, 20)}",
                f"- training {task.unit}s of a class: {min(counts):,} to {max(counts):,}",
                *(f"- {note}" for note in training["notes"]),
            ]
        ),
        f"## Results on {samples['test']:,} test samples",
        _results(about["results"]) + "\n\nFractions are in percent.",
        "## Use",
        "```python\nimport equipoise\n\n"
        f'model = equipoise.load_exported("PATH OF THIS FOLDER"{trust})\n'
        f"model(inputs)  # probabilities {probabilities}\n"
        f"model.predict(inputs)  # {decisions}\n```",
        f"Inputs: {INPUTS[about['preparation']['kind']]}. They are prepared as in training.",
        _fits(about),
    ]
    if trust:
        parts.append(
            "`model.py` is the program that makes the model, as it was when the model was exported. Loading runs it, "
            "and it needs what it imports."
        )
    return "\n\n".join(parts) + "\n"


def _results(results: Mapping[str, Any]) -> str:
    """A table."""
    before, after = results["overall"], results["calibrated"] or {}
    rows = [
        f"| {metric.label} | {metric.text(value)} | {metric.text(after[metric.key]) if metric.key in after else ''} |"
        for metric, value in ((metric_info(key), value) for key, value in before.items())
    ]
    return "\n".join(["| | uncalibrated | calibrated |", "|---|---|---|", *rows])


def _fits(about: Mapping[str, Any]) -> str:
    """What was learnt from the validation samples."""
    if about["calibration"] is None:
        sentences = ["The probabilities are those of the model: no calibration could be fitted on validation samples."]
    else:
        sentences = [f"The probabilities are calibrated on the validation samples ({about['calibration']['kind']})."]
    if about["thresholds"] is not None:
        sentences.append(
            "`predict` chooses a label above its threshold, set for F1 on the validation samples; CP to OF1 above are "
            "at probability 1/2."
        )
    return " ".join(sentences)
