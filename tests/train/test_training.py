"""The training: learning rates, clipping, averages, and what is recorded."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from equipoise.data import digits_lt
from equipoise.heads import bilateral, decouple
from equipoise.losses import CrossEntropyLoss, FocalLoss, current_settings
from equipoise.models import build_model
from equipoise.schedules import Linear
from equipoise.train.builders import optimizer_of
from equipoise.train.optimizers import learning_rate_factor
from equipoise.train.preparation import Preparation
from equipoise.train.run_loaders import RunLoaders
from equipoise.train.spec import RunSpec
from equipoise.train.task import TrainingTask
from equipoise.train.training import Training, WeightAverage

DATA = digits_lt()
BATCH_SIZE, EPOCHS = 16, 2


class Watch:
    """Records learning rates and norms of the gradients at each step of the optimiser."""

    def __init__(self):
        self.rates, self.norms = [], []

    def look(self, optimizer, args, kwargs):
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.norms.append(float(torch.nn.utils.get_total_norm([w.grad for w in optimizer.param_groups[0]["params"]])))


def trained(*, precision="32-true", loss=None, **options):
    """The training after some epochs, and its records."""
    torch.manual_seed(0)
    spec = RunSpec(data="digits-lt", epochs=EPOCHS, optimizer="sgd", lr=0.2, precision=precision)
    # by name, it would be bf16 on a CPU
    plugins = {"plugins": MixedPrecision("16-mixed", "cpu")} if precision == "16-mixed" else {"precision": precision}
    fabric = Fabric(accelerator="cpu", devices=1, **plugins)
    training = Training(
        fabric,
        TrainingTask(DATA),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)),
        CrossEntropyLoss() if loss is None else loss,
        Preparation.fit(DATA.train),
        make_optimizer=partial(optimizer_of, spec),
        factor=learning_rate_factor("cosine"),
        steps=len(DATA.train) // BATCH_SIZE,
        epochs=EPOCHS,
        **options,
    )
    watch = Watch()
    training.optimizer.register_step_pre_hook(watch.look)
    loader = RunLoaders(fabric, spec, DATA, {"train": DATA.train}, BATCH_SIZE).training()
    for epoch in range(EPOCHS):
        training.begin(epoch)
        loader.set_epoch(epoch)
        for batch in loader:
            training.take(batch)
    return training, watch


class EpochRecorder(nn.CrossEntropyLoss):
    """A user-defined loss that records its epochs."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


def test_loss_gets_every_epoch():
    loss = EpochRecorder()
    trained(loss=loss)
    assert loss.epochs == list(range(EPOCHS))


def test_schedules_of_a_loss_are_updated():
    loss = FocalLoss(Linear(5.0, 1.0), epochs=EPOCHS)
    trained(loss=loss)
    assert current_settings(loss)["gamma"] == pytest.approx(5.0 - 4.0 * (EPOCHS - 1) / EPOCHS)


def test_loss_without_set_epoch():
    training, _ = trained(loss=nn.CrossEntropyLoss())
    assert 0 < training.mean_loss() < 2.3


def test_the_learning_rate_follows_the_step():
    training, watch = trained()
    total = EPOCHS * training.steps
    factor = learning_rate_factor("cosine")
    assert watch.rates == [pytest.approx(0.2 * factor(step / total)) for step in range(total)]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_gradients_are_clipped(precision):
    _, free = trained(precision=precision)
    _, clipped = trained(precision=precision, clip=0.05)
    assert max(free.norms) > 0.5
    assert max(clipped.norms) == pytest.approx(0.05, rel=1e-3)


def test_the_recorded_gradient_is_that_before_it_is_clipped():
    training, watch = trained()
    clipped, _ = trained(clip=1e-3)
    assert clipped.statistics.row(clipped.model, clipped.loss)["gradient_norm"] > 0.05
    row = training.statistics.row(training.model, training.loss)
    assert row["largest_gradient_norm"] in [pytest.approx(norm) for norm in watch.norms[-training.steps :]]


def test_average_is_that_of_torch():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ours = WeightAverage(model, 0.9)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(4):
        model(torch.randn(8, 3)).square().sum().backward()
        optimizer.step()
        ours.update(model, first=step == 0)
        theirs.update_parameters(model)
    for (name, one), other in zip(ours.module.state_dict().items(), theirs.module.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_state_continues_a_training():
    training, _ = trained(ema=0.9, precision="16-mixed")
    other, _ = trained(ema=0.5, precision="16-mixed", loss=CrossEntropyLoss(label_smoothing=0.1))
    other.load_state_dict(training.state_dict())
    for ours, theirs in ((training.model, other.model), (training.average.module, other.average.module)):
        for name, weight in ours.state_dict().items():
            assert torch.equal(weight, theirs.state_dict()[name]), name
    assert other.scaler.state_dict() == training.scaler.state_dict()
    states = (one.optimizer.state_dict()["state"] for one in (training, other))
    for first, second in zip(*(state.values() for state in states), strict=True):
        assert torch.equal(first["momentum_buffer"], second["momentum_buffer"])


def test_options_of_the_device_are_not_resumed():
    """Such as those of a run that began on a GPU."""
    training, _ = trained()
    state = training.state_dict()
    for group in state["optimizer"]["param_groups"]:
        group |= {"fused": None, "foreach": True}
    training.load_state_dict(state)
    assert {(group["fused"], group["foreach"]) for group in training.optimizer.param_groups} == {(True, None)}


def test_state_of_another_layout_is_continued():
    """As by a run that began on a CPU and is resumed on a GPU."""
    spec, preparation = RunSpec(data="digits-lt", optimizer="sgd", lr=0.01), Preparation.fit(DATA.train)
    fabric = Fabric(accelerator="cpu", devices=1)

    def made(channels_last):
        torch.manual_seed(0)
        return Training(
            fabric,
            TrainingTask(DATA),
            build_model("resnet32", num_classes=10, input_shape=(1, 8, 8)),
            CrossEntropyLoss(),
            preparation,
            make_optimizer=partial(optimizer_of, spec),
            factor=learning_rate_factor("constant"),
            steps=4,
            epochs=1,
            channels_last=channels_last,
        )

    one, other = made(False), made(True)
    batches = list(RunLoaders(fabric, spec, DATA, {"train": DATA.train}, 16).training())[:4]
    for batch in batches[:2]:
        one.take(batch)
    other.load_state_dict(one.state_dict())
    for batch in batches[2:]:
        one.take(batch)
        other.take(batch)
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)
        assert one.optimizer.state[ours]["momentum_buffer"].stride() == ours.stride()
        assert other.optimizer.state[theirs]["momentum_buffer"].stride() == theirs.stride()


@pytest.mark.parametrize("name", ["linear", "mlp", "resnet32", "resnet18", "densenet121", "unet", "deeplabv3"])
@pytest.mark.parametrize("method", ["none", "sdn", "bbn"])
def test_models_have_the_same_outputs_with_channels_last(name, method):
    if (method == "bbn" and not name.startswith("resnet")) or (method == "sdn" and name == "linear"):
        pytest.skip("the method is for other models")
    torch.manual_seed(0)
    model = build_model(name, num_classes=3, input_shape=(3, 32, 32))
    model = {"none": lambda model: model, "sdn": decouple, "bbn": partial(bilateral, epochs=2)}[method](model).eval()
    inputs = torch.randn(2, 3, 32, 32)
    expected = model(inputs)
    model.to(memory_format=torch.channels_last)
    outputs = model(inputs.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(outputs, expected, rtol=1e-3, atol=1e-4)
    sum(output.sum() for output in (outputs if isinstance(outputs, tuple) else (outputs,))).backward()
    assert all(weight.grad.stride() == weight.stride() for weight in model.parameters() if weight.grad is not None)
