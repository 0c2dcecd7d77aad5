"""Training methods of papers: their texts, the trained model, the predicting model, and errors."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from equipoise import CrossEntropyLoss, LDAMLoss
from equipoise.comparison.kinds import DISTANCES, MADE_AFTERWARDS
from equipoise.data import Arrays, DataSet, digits_lt, open_data, sampler_for
from equipoise.expressions import canonical, is_method
from equipoise.heads import (
    BilateralModel,
    CosineClassifier,
    ModulatedAttention,
    decouple,
    features,
    normalize_classifier,
)
from equipoise.losses import LiftedStructureLoss, RangeLoss
from equipoise.models import MLP, build_model, find_classifier
from equipoise.tasks import Task
from equipoise.train import run as module
from equipoise.train.builders import loss_of
from equipoise.train.errors import TrainingError
from equipoise.train.export import export_run, load_exported
from equipoise.train.folder import RunFolder
from equipoise.train.methods import METHODS, MixedLoss, RunContext, parse_method
from equipoise.train.record import MethodSettings
from equipoise.train.rows import expand_rows, read_row
from equipoise.train.run import run
from equipoise.train.run_loaders import RunLoaders
from equipoise.train.spec import RunSpec, SpecError

QUICK = {
    "data": "digits-lt",
    "model": "mlp",
    "model_options": {"hidden": [32]},
    "lr": 0.01,
    "epochs": 2,
    "logger": "none",
}
TWO_STAGES = ("crt", "lws", "tau-norm", "ncm", "oltr")
MAPS = {
    "data": "digit-maps",
    "image_size": "8",
    "model": "unet",
    "model_options": {"width": 4, "depth": 1},
    "batch_size": 50,
    "epochs": 1,
}


def trained(folder, say=lambda line: None, **settings):
    """A finished run with few weights and epochs."""
    finished = run(RunSpec(**QUICK | settings), folder, say=say)
    assert finished.finished
    return finished


def saved_logits(run):
    with np.load(run.predictions("test")) as file:
        return torch.from_numpy(file["logits"]).float()


def contents(folder):
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def stage_one(tmp_path_factory):
    """The run from which methods with two stages start."""
    return trained(tmp_path_factory.mktemp("stages") / "one")


# -------------------------------------------------------------------------------------------------------------- texts


def test_every_method_is_its_name_alone():
    for name, kind in METHODS.items():
        assert type(parse_method(name)) is kind
        assert is_method(name)


def test_pages_know_which_methods_have_no_epochs_of_their_own():
    """Reports are written without torch, so they have a list of names."""
    assert set(MADE_AFTERWARDS) == {name for name, kind in METHODS.items() if not kind.learns_in_steps}
    assert set(DISTANCES) <= set(METHODS)


def test_options():
    sdn = parse_method("sdn:feature=ce")
    assert (sdn.feature, sdn.classifier) == ("ce", "class-balanced")
    assert sdn.losses == ["ce", "class-balanced"]
    assert parse_method("crt:epochs=5:lr=0.1") == METHODS["crt"](epochs=5, lr=0.1)
    assert parse_method("oltr:loss=(focal:gamma=2):memory=0").loss == "focal(gamma=2)"
    assert parse_method("oltr").rate == 0.1
    assert parse_method("tau-norm:tau=none").tau is None
    assert parse_method("bbn:mixing=published").second_sampler == "reversed"


@pytest.mark.parametrize("text", ["Tau-Norm", "tau_norm", " tau-norm "])
def test_spellings(text):
    assert read_row(text) == read_row("tau-norm")
    assert is_method(text)


def test_unknown_method():
    assert not is_method("ce")
    assert not is_method("focal:gamma=2")
    assert read_row("fl:gamma=2") == read_row("focal:gamma=2") != read_row("sdn")


def test_lists_of_values_are_candidates():
    assert expand_rows("tau-norm:tau=0.5,1") == ["tau-norm(tau=0.5)", "tau-norm(tau=1)"]
    assert expand_rows("sdn:feature=ce,(focal:gamma=1)") == ["sdn(feature=ce)", "sdn(feature=focal(gamma=1))"]
    assert len(expand_rows("crt:lr=0.1,0.2:epochs=1,2,3")) == 6
    assert expand_rows("focal:gamma=1,2") == ["focal(gamma=1)", "focal(gamma=2)"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sdm", "got 'sdm'; did you mean 'sdn'?"),
        ("", "known are none, sdn"),
        ("sdn:featur=ce", "got 'featur'; did you mean 'feature'?"),
        (
            "sdn:feature=focal:gamma=2",
            "got 'gamma'; known are feature, classifier; a loss with options stands in",
        ),
        ("bbn:rate=0.5", "got 'rate'; known are loss, mixing"),
        ("sdn:feature", "options of the form key=value, got 'feature'"),
        ("sdn:feature=ce:feature=ce", "found feature twice"),
        ("oltr:loss=foo", "must be a loss of the catalogue, got 'foo'"),
        ("oltr:loss=(ce", "must have a closing bracket"),
        ("crt:epochs=1.5", "epochs of crt must be an integer, got '1.5'"),
        ("crt:epochs=0", "epochs of crt must be a finite number in"),
        ("lws:lr=0", "lws: lr must be"),
        ("crt:lr=fast", "lr of crt must be a number, got 'fast'"),
        ("bbn:mixing=x", "one of 'default', 'published', got 'x'"),
        ("ncm:distance=far", "one of 'euclidean', 'cosine', got 'far'"),
        ("tau-norm:tau=-1", "tau of tau-norm must be"),
        ("ldam-drw:start=2", "start must be"),
        ("ldam-drw:scale=0", "scale must be"),
        ("oltr:rate=0", "rate must be"),
    ],
)
def test_mistakes_in_a_text(text, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the words are compared below)
        parse_method(text)
    assert words in str(error.value)
    with pytest.raises(SpecError) as error:
        RunSpec.check({"data": "digits-lt", "method": text})
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "sdn", "loss": "ce"}, "a method names its losses itself, got sdn and loss ce"),
        ({"loss": "sdn:feature=ce"}, "give it as --method sdn:feature=ce"),
        (
            {"method": "sdn", "stage_one": "x"},
            "methods with two stages only (crt, lws, tau-norm, ncm, oltr, oltr-attention)",
        ),
        ({"stage_one": "x"}, "got method none; omit it"),
    ],
)
def test_settings_that_do_not_go_together(settings, words):
    with pytest.raises(SpecError) as error:
        RunSpec.check({"data": "digits-lt", **settings})
    assert words in str(error.value)


# --------------------------------------------------------------------------------------- what is trained and predicts


@pytest.mark.parametrize("method", ["sdn", "sdn:feature=ce", "ldam-drw", "bbn", *TWO_STAGES, "oltr:loss=cfl"])
def test_a_method_trains_and_its_export_is_what_predicted(method, stage_one, tmp_path):
    first = stage_one.path if method.partition(":")[0] in TWO_STAGES else None
    before = contents(stage_one.path)
    finished = trained(tmp_path / "run", method=method, stage_one=None if first is None else str(first))
    assert contents(stage_one.path) == before
    record = finished.record
    assert record.spec["method"] == canonical(method)
    assert 0 <= record.best_epoch < 2
    assert record.seconds_per_step > 0
    assert record.monitor_value == pytest.approx(finished.results.val.overall["mean_class_accuracy"], abs=1e-6)
    assert finished.results.test.overall["mean_class_accuracy"] > 0.2
    rows = list(finished.history())
    assert len(rows) == (2 if parse_method(method).learns_in_steps else 0)
    exported = load_exported(export_run(finished.path, tmp_path / "exported"))
    assert f"- method: `{canonical(method)}`" in (tmp_path / "exported" / "README.md").read_text()
    inputs = open_data("digits-lt").test.inputs[:50]
    assert_close(exported.logits(inputs, calibrated=False), saved_logits(finished)[:50], rtol=1e-5, atol=1e-5)
    assert not isinstance(exported.model, BilateralModel) or method == "bbn"


CONVOLUTIONS = {"model": "resnet32", "model_options": {"width": 4}}


@pytest.mark.parametrize("method", ["lifted", "range(weight=0.01, k=1)", "lifted(loss=focal, margin=2)"])
def test_a_loss_of_the_features_beside_that_of_the_logits(method, stage_one, tmp_path):
    finished = trained(tmp_path / "run", method=method)
    assert finished.results.test.overall["mean_class_accuracy"] > 0.2
    assert not torch.allclose(saved_logits(finished), saved_logits(stage_one))
    exported = load_exported(export_run(finished.path, tmp_path / "exported"))
    inputs = open_data("digits-lt").test.inputs[:50]
    assert_close(exported.logits(inputs, calibrated=False), saved_logits(finished)[:50], rtol=1e-5, atol=1e-5)


def test_the_loss_of_the_features_has_its_factor():
    draw = torch.Generator().manual_seed(0)
    features, logits = (torch.randn(12, size, generator=draw) for size in (5, 3))
    labels = torch.arange(12) % 3
    context = RunContext(
        loss=lambda text, *epochs: CrossEntropyLoss(), features=None, epochs=1, seed=0, ignore_index=-100, say=print
    )
    plain = CrossEntropyLoss()(logits, labels)
    for text, embedding in {
        "lifted(weight=0.3, margin=2)": LiftedStructureLoss(2.0),
        "range(weight=0.3, k=3, margin=7, intra=0.5, inter=2)": RangeLoss(3, margin=7.0, intra=0.5, inter=2.0),
    }.items():
        objective = parse_method(text).objective(nn.Identity(), context)
        objective.set_epoch(0)
        assert_close(objective((features, logits), labels), plain + 0.3 * embedding(features, labels))


def test_oltr_with_attention_trains_and_its_export_is_what_predicted(tmp_path):
    finished = trained(tmp_path / "run", method="oltr-attention(after=layer3)", **CONVOLUTIONS)
    exported = load_exported(export_run(finished.path, tmp_path / "exported"))
    inputs = open_data("digits-lt").test.inputs[:50]
    assert_close(exported.logits(inputs, calibrated=False), saved_logits(finished)[:50], rtol=1e-5, atol=1e-5)
    (attention,) = (one for one in exported.model.modules() if isinstance(one, ModulatedAttention))
    assert attention.spatial.weight.shape == (4, 4 * 16)  # maps of 2 x 2
    assert bool(attention.out.weight.any())  # trained: it starts at 0


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("oltr-attention", "after must name a module of CifarResNet, got 'layer4'"),
        ("oltr-attention(after=fc)", "after must name a module that returns maps (N, D, h, w), got (64, 10)"),
    ],
)
def test_attention_behind_a_module_without_maps(method, words, tmp_path):
    with pytest.raises(ValueError, match=re.escape(words).replace("64", r"\d+")):
        trained(tmp_path / "run", method=method, **CONVOLUTIONS)
    assert (tmp_path / "run.unfinished" / "stage-one").exists() == ("fc" in method)


def test_method_none_is_the_loss_alone(stage_one, tmp_path):
    same = trained(tmp_path / "run", method="none", loss="ce")
    assert torch.equal(saved_logits(same), saved_logits(stage_one))
    assert not (same.path / "stage-one").exists()


def test_the_checkpoint_of_sdn_holds_the_merged_model(tmp_path):
    finished = trained(tmp_path / "run", method="sdn")
    kept = torch.load(finished.checkpoint, weights_only=True)
    assert kept["epoch"] == finished.record.best_epoch
    inputs = torch.randn(16, 1, 8, 8)
    made = {"num_classes": 10, "input_shape": (1, 8, 8), "hidden": [32]}
    both, plain = decouple(build_model("mlp", **made)), build_model("mlp", **made)
    both.load_state_dict(kept["trained"])
    plain.load_state_dict(kept["model"])
    with torch.no_grad():
        assert torch.equal(plain.eval()(inputs), both.eval()(inputs))
        heads = both.train()(inputs)
    assert not torch.equal(heads.feature, heads.classifier)
    assert finished.record.model.parameters == sum(weight.numel() for weight in plain.parameters())


def test_ldam_drw_is_the_published_loss_on_cosines():
    """The scale is in the head, so margins are multiplied by it."""
    data, method = digits_lt(), parse_method("ldam-drw")
    settings = RunSpec(data="digits-lt", epochs=10)
    context = module.RunContext(
        loss=lambda text: loss_of(settings, data, False, text),
        features=None,
        epochs=10,
        seed=0,
        ignore_index=-100,
        say=print,
    )
    model = MLP(in_features=64, num_classes=10, hidden=(16,))
    cosines = MLP(in_features=64, num_classes=10, hidden=(16,))
    cosines.load_state_dict(model.state_dict())
    ours = method.trained(model, context)
    head = find_classifier(ours).module
    assert isinstance(head, CosineClassifier)
    normalize_classifier(cosines)
    loss = method.objective(ours, context)
    inputs, labels = torch.rand(64, 64), torch.from_numpy(data.train.labels[:64]).long()
    for epoch in (0, 7, 8, 9):  # the weights begin with the ninth of ten
        from equipoise.weights import Deferred, effective_number

        counts = data.train_counts.tolist()
        published = LDAMLoss(counts, scale=30.0, weight=Deferred(effective_number(counts), start=0.8), epochs=10)
        loss.set_epoch(epoch)
        published.set_epoch(epoch)
        assert_close(loss(ours(inputs), labels), published(cosines(inputs), labels), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("method", "last"), [("bbn", 0.0), ("bbn:mixing=published", 1 - (2 / 3) ** 2)])
def test_the_branches_of_bbn(method, last, tmp_path, monkeypatch):
    """The second batches come from the reversed sampler and change in every epoch; the mixing follows the epochs."""
    seen, shares = [], []
    forward = MixedLoss.forward

    def look(self, logits, targets, reversed_targets):
        seen.append((targets.cpu(), reversed_targets.cpu()))
        shares.append(float(self._model[0].share))
        return forward(self, logits, targets, reversed_targets)

    monkeypatch.setattr(MixedLoss, "forward", look)
    trained(tmp_path / "run", method=method, epochs=3, batch_size=32)
    data = digits_lt()
    steps = len(data.train) // 32
    assert shares == pytest.approx(np.repeat([1.0, 1 - 0.25 if last == 0 else 1 - 1 / 9, last], steps).tolist())
    labels = torch.from_numpy(data.train.labels).long()
    for column, name in enumerate(["none", "reversed"]):
        sampler = sampler_for(name, data.train.labels, epochs=3, seed=0)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            drawn = torch.tensor(list(sampler))[: steps * 32]
            drawn_labels = torch.cat([pair[column] for pair in seen[epoch * steps : (epoch + 1) * steps]])
            assert torch.equal(drawn_labels, labels[drawn])
    epochs = [torch.cat([pair[1] for pair in seen[k * steps : (k + 1) * steps]]) for k in range(3)]
    assert all(not torch.equal(one, other) for one, other in pairwise(epochs))
    rarest = int(data.train_counts.argmin())
    assert (epochs[0] == rarest).float().mean() > (torch.cat([pair[0] for pair in seen]) == rarest).float().mean()


def test_selected_tau_is_reported(stage_one, tmp_path):
    lines = []
    trained(tmp_path / "run", lines.append, method="tau-norm", stage_one=str(stage_one.path))
    (line,) = (line for line in lines if line.startswith("tau "))
    tau, best, plain = (float(number) for number in re.findall(r"(\d+\.?\d*)(?:%| has|;)", line)[:3])
    assert 0 <= tau <= 2
    assert best >= plain
    trained(tmp_path / "given", lines.append, method=f"tau-norm:tau={tau}", stage_one=str(stage_one.path))
    assert torch.equal(*(saved_logits(RunFolder(tmp_path / name)) for name in ("run", "given")))
    assert [RunFolder(tmp_path / name).record.settled for name in ("run", "given")] == [MethodSettings(tau=tau)] * 2


def test_stage_one_is_trained_inside_by_default(stage_one, tmp_path):
    lines = []
    alone = trained(tmp_path / "alone", lines.append, method="crt")
    shared = trained(tmp_path / "shared", method="crt", stage_one=str(stage_one.path))
    assert torch.equal(saved_logits(alone), saved_logits(shared))
    inside = RunFolder(alone.path / "stage-one")
    assert torch.equal(saved_logits(inside), saved_logits(stage_one))
    assert alone.record.monitor_value == shared.record.monitor_value
    assert sum(line.startswith("stage one: epoch") for line in lines) == 2
    assert lines[-2:-1] == ["the classifier is trained for 10 epochs in batches of 17, lr 0.00664"]
    assert lines[-1].endswith("crt, no further epochs")
    assert alone.record.settled == MethodSettings(classifier_batch_size=17, classifier_lr=0.2 * 17 / 512)


@pytest.mark.parametrize("settings", [{"ema": 0.9}, {"precision": "bf16-mixed"}], ids=["ema", "bf16"])
@pytest.mark.parametrize("method", ["sdn", "bbn", "oltr"])
def test_averaged_weights_and_half_precision(method, settings, tmp_path):
    plain = trained(tmp_path / "plain", method=method)
    finished = trained(tmp_path / "run", method=method, **settings)
    logits, others = saved_logits(finished), saved_logits(plain)
    assert torch.isfinite(logits).all()
    assert not torch.equal(logits, others)
    if "precision" in settings:
        assert_close(logits, others, rtol=0.1, atol=0.2)
    exported = load_exported(export_run(finished.path, tmp_path / "exported"))
    inputs = open_data("digits-lt").test.inputs
    loose = 0.1 if "precision" in settings else 1e-5
    assert_close(exported.logits(inputs, calibrated=False), logits, rtol=loose, atol=loose)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sdn", "bbn", "oltr"])
def test_compiled_steps(method, stage_one, tmp_path):
    first = {"stage_one": str(stage_one.path)} if method == "oltr" else {}
    plain = [row.train["loss"] for row in trained(tmp_path / "plain", method=method, **first).history()]
    if method == "oltr":  # stage one has to be compiled as well
        first = {"stage_one": str(trained(tmp_path / "one", compile="default").path)}
    compiled = trained(tmp_path / "compiled", method=method, compile="default", **first)
    assert [row.train["loss"] for row in compiled.history()] == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("method", ["sdn", "ldam-drw"])
def test_label_maps(method, tmp_path):
    finished = trained(tmp_path / "run", method=method, **MAPS)
    logits = saved_logits(finished)
    assert logits.shape[1:] == (11, 8, 8)
    exported = load_exported(export_run(finished.path, tmp_path / "exported"))
    inputs = open_data("digit-maps", image_size=(8, 8)).test.inputs[:20]
    assert_close(exported.logits(inputs, calibrated=False), logits[:20], rtol=1e-2, atol=1e-2)


@pytest.mark.slow
def test_two_stages_of_label_maps(tmp_path):
    first = trained(tmp_path / "one", **MAPS)
    for method in TWO_STAGES:
        finished = trained(tmp_path / method, method=method, stage_one=str(first.path), **MAPS)
        exported = load_exported(export_run(finished.path, tmp_path / f"{method}-exported"))
        inputs = open_data("digit-maps", image_size=(8, 8)).test.inputs[:20]
        saved = saved_logits(finished)[:20]
        assert torch.isfinite(saved).all()
        assert_close(exported.logits(inputs, calibrated=False), saved, rtol=1e-2, atol=1e-2)


def test_several_labels(tmp_path):
    settings = {"data": "digit-scenes", "image_size": "12", "epochs": 1}
    first = trained(tmp_path / "one", **settings)
    others = []
    for method in ("crt", "lws"):
        finished = trained(tmp_path / method, method=method, stage_one=str(first.path), **settings)
        assert set(finished.results.test.overall) == set(first.results.test.overall)
        assert (finished.path / "thresholds.json").is_file()
        others.append(saved_logits(finished))
    assert not torch.equal(others[0], others[1])


# ---------------------------------------------------------------------------------------------------------- bad input


def refused(folder, words, kind=ValueError, **settings):
    """The error of a run that is refused; existing files do not change."""
    before = contents(folder)
    with pytest.raises(kind) as error:
        run(RunSpec(**QUICK | settings), folder / "run")
    assert words in str(error.value)
    assert before.items() <= contents(folder).items()
    return str(error.value)


NO_LINEAR_LAYER = """
from torch import nn

def convolutions(num_classes, input_shape):
    return nn.Sequential(nn.Conv2d(input_shape[0], num_classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def two(num_classes, input_shape):
    return Two(num_classes)

class Two(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.main, self.side = nn.Linear(64, num_classes), nn.Linear(64, num_classes)

    def forward(self, inputs):
        return self.main(inputs.flatten(1))
"""


@pytest.mark.parametrize("method", ["sdn", "ldam-drw", "bbn", "crt", "oltr"])
@pytest.mark.parametrize(("made", "words"), [("convolutions", "got Sequential with neither"), ("two", "that could be")])
def test_a_model_without_a_last_layer_to_find(made, words, method, tmp_path, monkeypatch):
    """The error comes before stage one is trained."""
    (tmp_path / "net.py").write_text(NO_LINEAR_LAYER)
    monkeypatch.setattr(module.torch, "load", None)
    message = refused(tmp_path, words, method=method, model=f"{tmp_path / 'net.py'}:{made}", model_options={})
    assert "get_classifier()" in message
    assert "name=" not in message
    assert not RunFolder(tmp_path / "run").draft.exists()


def test_a_model_that_is_one_layer_has_no_block_to_double(tmp_path):
    refused(tmp_path, "must have a layer with parameters before", method="bbn", model="linear", model_options={})
    assert not RunFolder(tmp_path / "run").draft.exists()


@pytest.mark.parametrize(
    ("data", "method", "words"),
    [
        (
            "digit-scenes",
            "sdn",
            "sdn is for task multiclass or segmentation, got 'multilabel'; use one of none, crt",
        ),
        ("digit-scenes", "tau-norm", "--method tau-norm is for task multiclass or segmentation, got 'multilabel'"),
        ("digit-maps", "bbn", "--method bbn is for task multiclass, got 'segmentation'"),
        ("digits-lt", "sdn:classifier=bce", "loss must be for single-label data"),
        ("digits-lt", "crt:backbone=bce", "loss must be for single-label data"),
        ("digits-lt", "oltr:loss=dice", "loss must be for single-label data"),
    ],
)
def test_a_method_of_another_task(data, method, words, tmp_path):
    refused(tmp_path, words, data=data, method=method, model="auto", model_options={})
    assert not RunFolder(tmp_path / "run").draft.exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": 1}, "with seed 0 in place of 1;"),
        ({"epochs": 3}, "with epochs 2 in place of 3;"),
        ({"model_options": {"hidden": [16]}}, "in place of {'hidden': [16]};"),
        ({"method": "crt:backbone=focal"}, "with loss auto in place of focal;"),
        ({"longtail": "exponential:10"}, "with longtail None in place of exponential:10;"),
        ({"data": "digit-scenes", "seed": 1}, "with data digits-lt in place of digit-scenes, seed 0 in place of 1;"),
    ],
)
def test_stage_one_of_something_else(settings, words, stage_one, tmp_path):
    before = contents(stage_one.path)
    refused(tmp_path, words, **{"method": "crt", "stage_one": str(stage_one.path)} | settings)
    assert contents(stage_one.path) == before


def changed(folder, change):
    """Change the record of a run."""
    about = json.loads((folder / "run.json").read_text())
    change(about)
    (folder / "run.json").write_text(json.dumps(about))


def test_stage_one_of_data_that_have_changed(stage_one, tmp_path):
    copied = tmp_path / "one"
    shutil.copytree(stage_one.path, copied)
    changed(copied, lambda about: about["data"]["class_names"].reverse())
    refused(tmp_path, "with other class names; the data have changed", method="crt", stage_one=str(copied))
    changed(copied, lambda about: about["data"]["class_names"].reverse())
    changed(copied, lambda about: about["data"]["train_counts"].reverse())
    refused(tmp_path, "with other training samples of the classes;", method="crt", stage_one=str(copied))
    changed(copied, lambda about: about["data"]["train_counts"].reverse())
    changed(copied, lambda about: about["data"].update(fingerprint="of the same samples in another order"))
    refused(tmp_path, "with other samples, or their order;", method="crt", stage_one=str(copied))
    changed(copied, lambda about: about["data"].pop("fingerprint"))  # as runs of earlier versions
    trained(tmp_path / "earlier", method="crt", stage_one=str(copied))


def test_stage_one_with_an_equivalent_loss(stage_one, tmp_path):
    assert stage_one.record.spec["loss"] == "auto"
    for loss in ("ce", "CrossEntropyLoss"):
        trained(tmp_path / loss, method=f"tau-norm:tau=1:backbone={loss}", stage_one=str(stage_one.path))


def test_stage_one_with_other_weights(stage_one, tmp_path):
    copied = tmp_path / "one"
    shutil.copytree(stage_one.path, copied)
    torch.save({"epoch": 0, "model": nn.Linear(2, 3).state_dict()}, copied / "checkpoint.ckpt")
    refused(tmp_path, "--stage-one must hold weights of --model mlp", method="oltr", stage_one=str(copied))
    (copied / "checkpoint.ckpt").write_bytes(b"broken")
    refused(tmp_path, "--stage-one must hold weights of --model mlp", method="crt", stage_one=str(copied))
    (copied / "checkpoint.ckpt").unlink()
    refused(tmp_path, "--stage-one must hold weights of --model mlp", method="crt", stage_one=str(copied))


def test_missing_stage_one(tmp_path):
    missing = tmp_path / "one"
    refused(
        tmp_path, f"found none at {missing}; train it first, with --loss auto", method="crt", stage_one=str(missing)
    )
    RunFolder(missing).draft.mkdir()
    (RunFolder(missing).draft / "spec.json").write_text("{}")
    refused(tmp_path, f"found an unfinished one at {missing}", method="crt:backbone=focal", stage_one=str(missing))


def test_several_devices_need_a_stage_one(tmp_path):
    refused(tmp_path, "--stage-one must be given if several devices train", method="crt", devices="2")


def test_features_larger_than_the_memory(tmp_path, monkeypatch):
    """Stage one is kept, and with more memory the same command resumes from it."""
    monkeypatch.setattr(features, "_free_bytes", lambda device: 1000)
    message = refused(tmp_path, "features must fit into the memory of cpu", kind=TrainingError, method="crt")
    assert "--model" in message
    assert "stage one is kept" in message
    assert "device=" not in message
    draft = RunFolder(tmp_path / "run").draft
    kept = contents(draft / "stage-one")
    assert kept
    monkeypatch.undo()
    lines = []
    finished = trained(tmp_path / "run", lines.append, method="crt")
    assert not any(line.startswith("stage one: epoch") for line in lines)
    assert {file.name: message for file, message in kept.items()} == {
        file.name: message for file, message in contents(finished.path / "stage-one").items()
    }


@pytest.mark.parametrize("method", ["crt:lr=1e30", "tau-norm:tau=1000"])
def test_non_finite_classifier(method, tmp_path):
    """Stage one is not lost: another run can use it."""
    words = f"--method {canonical(method)} produced non-finite weights"
    message = refused(tmp_path, words, kind=TrainingError, method=method)
    first = RunFolder(tmp_path / "run").draft / "stage-one"
    assert message.endswith(f"--stage-one {first}")
    trained(tmp_path / "other", method=method.partition(":")[0], stage_one=str(first))


def test_features_are_kept_on_the_host_if_the_device_is_full(stage_one, tmp_path, monkeypatch):
    places = []
    keep = features.keep_features

    def full(*arguments, device, **options):
        places.append(device.type)
        if len(places) == 1:
            raise MemoryError("features must fit into the memory of meta, got ...; pass less")
        return keep(*arguments, device=device, **options)

    from equipoise.train import run_loaders

    monkeypatch.setattr(run_loaders, "keep_features", full)
    loader = run_loaders.evaluation_loader
    monkeypatch.setattr(
        run_loaders, "evaluation_loader", lambda *args, device, **options: loader(*args, device="cpu", **options)
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    monkeypatch.setattr(model, "to", lambda device: model)
    from equipoise.train.preparation import Preparation

    data = digits_lt()
    fabric = SimpleNamespace(device=torch.device("cuda"), world_size=1, global_rank=0)
    made = run_loaders.RunLoaders(fabric, RunSpec(data="digits-lt"), data, {"train": data.train}, 32)
    kept = run_loaders.classifier_features(made, Preparation.fit(data.train), model, "train")
    assert places == ["cuda", "cpu"]
    assert len(kept.features) == len(data.train)


@pytest.mark.parametrize(("samples", "batch", "lr"), [(8192, 512, 0.2), (276, 17, 0.2 * 17 / 512), (40, 8, 0.2 / 64)])
def test_few_samples_retrain_a_classifier_in_smaller_batches(samples, batch, lr, monkeypatch):
    """Steps as published with many samples; ten steps with a high learning rate would miss some classes."""
    asked = {}

    def retrained(model, kept, **options):
        asked.update(options)
        return nn.Linear(4, 3)

    monkeypatch.setattr("equipoise.train.methods.retrain_classifier", retrained)
    kept = features.KeptFeatures(torch.zeros(samples, 4), torch.zeros(samples, dtype=torch.long), 3)
    context = module.RunContext(
        loss=lambda text, epochs: nn.CrossEntropyLoss(),
        features=lambda *_: kept,
        epochs=9,
        seed=5,
        ignore_index=-100,
        say=print,
    )
    parse_method("crt").trained(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)), context)
    assert (asked["batch_size"], asked["lr"], asked["epochs"], asked["seed"]) == (batch, lr, 10, 5)


def test_second_sampler_has_the_steps_of_the_first():
    """Also if the first repeats samples of rare classes."""
    counts = [100_000, 10]
    labels = np.repeat(np.arange(2), counts)
    images = np.zeros((len(labels), 1, 1, 1), np.uint8)
    data = DataSet("made", Task.MULTICLASS, ("a", "b"), *[Arrays(images, labels)] * 3)
    fabric = SimpleNamespace(device=torch.device("cpu"), world_size=1, global_rank=0)
    spec = RunSpec(data="made", sampler="repeat-factor")
    loaders = RunLoaders(fabric, spec, data, {"train": data.train}, 8, "reversed").training()
    first, second = loaders.loaders
    assert len(loaders) == len(first) == len(second)
    assert len(first) > len(labels) // 8
