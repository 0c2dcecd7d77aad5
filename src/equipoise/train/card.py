"""The page that goes with an exported model: what it learnt, how good it is, how it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.data.errors import some
from equipoise.report.words import LABELS, TITLES, shown
from equipoise.train.loss_text import default_loss

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
    data, spec, model = about["training"]["data"], about["training"]["spec"], about["model"]
    samples = data["samples"]
    loss = default_loss(about["task"]) if spec["loss"] == "auto" else spec["loss"]
    probabilities, decisions = OUTPUTS[about["task"]]
    trust = ", trust_code=True" if model["name"].startswith("model.py:") else ""
    parts = [
        f"# {model['name']} on {data['name']}",
        f"Task: {TITLES[about['task']]}. Trained with equipoise {about['equipoise']} on {samples['train']:,} samples; "
        f"epoch {about['training']['best_epoch'] + 1} of {spec['epochs']} was chosen on {samples['val']:,} others.",
        "\n".join(
            [
                f"- model: `{model['name']}`, {model['parameters']:,} weights",
                f"- loss: `{loss}`",
                f"- {len(data['class_names'])} classes: {some(data['class_names'], 20)}",
                f"- {'pixels' if about['task'] == 'segmentation' else 'training samples'} of a class: "
                f"{min(data['train_counts']):,} to {max(data['train_counts']):,}",
                *(f"- {note}" for note in data["notes"]),
            ]
        ),
        f"## Results on {samples['test']:,} test samples",
        _results(about["results"]),
        "## Use",
        "```python\nimport equipoise\n\n"
        f'model = equipoise.load_exported("PATH OF THIS FOLDER"{trust})\n'
        f"model(inputs)  # probabilities {probabilities}\n"
        f"model.predict(inputs)  # {decisions}\n```",
        f"Inputs: {INPUTS[about['preparation']['kind']]}. They are prepared as in training.",
        _correction(about),
    ]
    if trust:
        parts.append(
            "`model.py` is the program that makes the model, as it was when the model was exported. Loading runs it, "
            "and it needs what it imports."
        )
    return "\n\n".join(parts) + "\n"


def _results(results: Mapping[str, Any]) -> str:
    """A table; shares are in percent."""
    before, after = results["overall"], results["calibrated"] or {}
    rows = [
        f"| {LABELS[name]} | {shown(name, value)} | {shown(name, after[name]) if name in after else ''} |"
        for name, value in before.items()
    ]
    return "\n".join(["| | as trained | calibrated |", "|---|---|---|", *rows])


def _correction(about: Mapping[str, Any]) -> str:
    """What was done about the probabilities."""
    if about["calibration"] is None:
        return "The probabilities are those of the model: no calibration could be fitted on the validation samples."
    kind = about["calibration"]["kind"]
    decisions = "" if about["thresholds"] is None else ", decisions by thresholds for the best F1 of each label"
    return f"The probabilities are calibrated ({kind}){decisions}, fitted on the validation samples."
