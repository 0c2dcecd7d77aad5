"""The model card of an exported model: its training, its results and its use."""

from __future__ import annotations

from equipoise._suggestions import some
from equipoise.metric_registry import metric_info
from equipoise.tasks import Task
from equipoise.train.export_record import ExportedResults, ExportRecord

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


def model_card(record: ExportRecord) -> str:
    """The model card of an exported model, in Markdown."""
    training, model, names = record.training, record.model, record.class_names
    samples, counts = training.samples, training.train_counts
    task = record.task
    probabilities, decisions = OUTPUTS[task]
    trust = ", trust_code=True" if model.is_user_code else ""
    best = f", the best on {samples['val']:,} validation samples" if training.checkpoint == "best" else ""
    parts = [
        f"# {model.name} on {training.data}",
        f"Task: {task.label}. Trained with equipoise {record.equipoise} on {samples['train']:,} samples; "
        f"the weights are those of epoch {training.chosen_epoch} of {training.epochs}{best}.",
        "\n".join(
            [
                f"- model: `{model.name}`, {model.parameters:,} weights",
                f"- loss: `{training.loss}`" if model.method == "none" else f"- method: `{model.method}`",
                f"- {len(names)} classes: {some(names, 20)}",
                f"- training {task.unit}s of a class: {min(counts):,} to {max(counts):,}",
                *(f"- {note}" for note in training.notes),
            ]
        ),
        f"## Results on {samples['test']:,} test samples",
        _results(record.results) + "\n\nFractions are in percent.",
        "## Use",
        "```python\nimport equipoise\n\n"
        f'model = equipoise.load_exported("PATH OF THIS FOLDER"{trust})\n'
        f"model(inputs)  # probabilities {probabilities}\n"
        f"model.predict(inputs)  # {decisions}\n```",
        f"Inputs: {INPUTS[record.preparation.kind]}. They are prepared as in training.",
        _fits(record),
    ]
    if trust:
        parts.append(
            "`model.py` is the code of the model, as it was when the model was trained. Loading runs it; it needs the "
            "packages that it imports."
        )
    return "\n\n".join(parts) + "\n"


def _results(results: ExportedResults) -> str:
    """The results as a table."""
    before, after = results.overall, results.calibrated or {}
    rows = [
        f"| {metric.label} | {metric.text(value)} | {metric.text(after[metric.key]) if metric.key in after else ''} |"
        for metric, value in ((metric_info(key), value) for key, value in before.items())
    ]
    return "\n".join(["| | uncalibrated | calibrated |", "|---|---|---|", *rows])


def _fits(record: ExportRecord) -> str:
    """Sentences about the fits on validation data."""
    if record.calibration is None:
        sentences = ["The probabilities are those of the model: no calibration could be fitted on validation samples."]
    else:
        sentences = [f"The probabilities are calibrated on the validation samples ({record.calibration.kind})."]
    if record.thresholds is not None:
        sentences.append(
            "`predict` chooses a label above its threshold, set for F1 on the validation samples; CP to OF1 above are "
            "at probability 1/2."
        )
    return " ".join(sentences)
