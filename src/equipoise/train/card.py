"""The page that goes with an exported model: what it learnt, how good it is, how it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise._formatting import LABELS, TITLES, shown
from equipoise._nearest import some

__all__ = ["model_card"]

INPUTS = {
    "images": "a uint8 array (N, channels, height, width) or (N, height, width, channels), pillow's images, or files",
    "features": "an array (N, D) of the features of training in their order",
    "tokens": "a list of texts",
}
OUTPUTS = {
    "single": ("(N, C), they sum to 1", "a class name for each sample"),
    "multi": ("(N, C), one for each label", "a list of labels for each sample"),
    "segmentation": ("(N, C, H, W), they sum to 1", "label maps (N, H, W) of class numbers"),
}


def model_card(about: Mapping[str, Any]) -> str:
    """Markdown from the content of ``model.json``."""
    training, model, names = about["training"], about["model"], about["class_names"]
    samples, counts, method = training["samples"], training["train_counts"], model.get("method", "none")
    probabilities, decisions = OUTPUTS[about["task"]]
    trust = ", trust_code=True" if model["name"].startswith("model.py:") else ""
    best = f", the best on {samples['val']:,} validation samples" if training["checkpoint"] == "best" else ""
    parts = [
        f"# {model['name']} on {training['data']}",
        f"Task: {TITLES[about['task']]}. Trained with equipoise {about['equipoise']} on {samples['train']:,} samples; "
        f"the weights are those of epoch {training['chosen_epoch']} of {training['epochs']}{best}.",
        "\n".join(
            [
                f"- model: `{model['name']}`, {model['parameters']:,} weights",
                f"- loss: `{training['loss']}`" if method == "none" else f"- method: `{method}`",
                f"- {len(names)} classes: {some(names, 20)}",
                f"- training {'pixels' if about['task'] == 'segmentation' else 'samples'} of a class: "
                f"{min(counts):,} to {max(counts):,}",
                *(f"- {note}" for note in training["notes"]),
            ]
        ),
        f"## Results on {samples['test']:,} test samples",
        _results(about["results"]) + "\n\nShares are in percent.",
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
        f"| {LABELS[name]} | {shown(name, value)} | {shown(name, after[name]) if name in after else ''} |"
        for name, value in before.items()
    ]
    return "\n".join(["| | as trained | calibrated |", "|---|---|---|", *rows])


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
