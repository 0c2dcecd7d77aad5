# %% [markdown]
# # Several labels a sample, some of them unknown
#
# Nobody annotates everything. Of the labels of an image some are known to be
# there, some known to be absent, and many have never been looked for. This page
# shows what an unknown label costs when it is taken for a negative one, what
# the asymmetric loss changes, and how to choose the thresholds that turn
# probabilities into decisions. The data are canvases with up to ten different
# handwritten digits, the digit 0 on every second, the digit 9 on every
# hundredth.

# %% The data
import matplotlib.pyplot as plt
import torch
from torch import nn

import equipoise
from equipoise import calibration, metrics
from equipoise.data import digit_scenes

torch.set_num_threads(1)  # the networks are small
data = digit_scenes()
(x_train, y_train), (x_val, y_val), (x_test, y_test) = (
    (
        torch.from_numpy(split.inputs).float().div(255),
        torch.from_numpy(split.labels),
    )
    for split in (data.train, data.val, data.test)
)
sizes = len(x_train), len(x_val), len(x_test)
print("canvases for training, validation, test:", *sizes)
print("training canvases by digit:", y_train.sum(0).tolist())

# %% Three canvases
figure, axes = plt.subplots(1, 3, figsize=(6, 2.3), layout="constrained")
for place, image, present in zip(axes, x_train, y_train, strict=False):
    place.imshow(image[0], cmap="gray")
    place.set_title(f"has {present.nonzero().flatten().tolist()}")
    place.set_axis_off()
figure.savefig("multi_label_canvases.svg")

# %% [markdown]
# ## Half of the labels get lost
#
# Unknown labels are written as `-1`. Losses and metrics for several labels
# leave them out by themselves: they add nothing to the value, to the gradient
# or to the denominator.

# %% Unknown labels
draw = torch.Generator().manual_seed(0)
unknown = torch.rand(y_train.shape, generator=draw) < 0.5
partial = y_train.masked_fill(unknown, -1)
known, there = (partial == 1).sum().item(), (y_train == 1).sum().item()
print(f"{known} of {there} digits are known to be there")
print(partial[:3])

# %% [markdown]
# ## Four ways to learn from them
#
# The common mistake is to write 0 for what is not known. It teaches the network
# that half of what it sees is not there.

# %% Training
EPOCHS = 40


def train(loss, labels):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 8, stride=8), nn.ReLU(),  # one digit at a time
        nn.Conv2d(32, 64, 1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-2, total_steps=EPOCHS * -(-len(labels) // 50)
    )
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels)).split(50):
            optimizer.zero_grad()
            loss(model(x_train[batch]), labels[batch].float()).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


ways = {
    "unknown as absent": (
        equipoise.BinaryCrossEntropyLoss(),
        partial.clamp(min=0),
    ),
    "unknown left out": (equipoise.BinaryCrossEntropyLoss(), partial),
    "the same, asymmetric": (equipoise.AsymmetricLoss(), partial),
    "all labels known": (equipoise.BinaryCrossEntropyLoss(), y_train),
}
models = {name: train(*way) for name, way in ways.items()}

# %% [markdown]
# mAP ranks the canvases for each digit and does not care how high the scores
# are. CP and CR are precision and recall at a threshold of one half, mean over
# the digits; CF1 is made of the two, OF1 counts all digits together. One
# training each: differences of two or three points are noise.


# %% At a threshold of one half
def row(name, found, average_precision):
    cells = "".join(
        f"{100 * found[key].item():8.1f}" for key in ("CP", "CR", "CF1", "OF1")
    )
    print(f"{name:22}{100 * average_precision.item():8.1f}{cells}")


with torch.no_grad():
    val, test = (
        {name: model(x) for name, model in models.items()}
        for x in (x_val, x_test)
    )
precision = metrics.MultilabelAveragePrecision(num_labels=10)
at_half = metrics.MultilabelScores(num_labels=10)
print(f"{'':22}{'mAP':>8}{'CP':>8}{'CR':>8}{'CF1':>8}{'OF1':>8}")
half = {name: at_half(logits, y_test) for name, logits in test.items()}
for name, logits in test.items():
    row(name, half[name], precision(logits, y_test))

# %% [markdown]
# ## Probabilities and thresholds
#
# A threshold of one half is seldom right: the first network has been taught to
# doubt, the asymmetric loss fades out the easy negatives, so that its scores
# are too high. Two steps repair that on validation data.
# `fit_label_temperatures` makes probabilities of the scores, one scale and one
# shift for each label; `fit_thresholds` chooses, for each label, the
# probability from which on it is chosen, so that F1 is highest. The F1 that it
# expects comes from cross-fitting.

# %% Calibrated, and with a threshold for each label
ece = metrics.CalibrationError(kind="multilabel")
calibrated, decided = {}, {}
print(
    f"{'':22}{'ECE, %':>8}{'after':>7}"
    f"{'thresholds':>15}{'expected F1, %':>17}{'CF1, %':>8}"
)
for name in models:
    fit = calibration.fit_label_temperatures(val[name], y_val, bias=True)
    chosen = calibration.fit_thresholds(fit(val[name]), y_val)
    calibrated[name] = fit(test[name])
    # thresholds come to lie at one half
    decided[name] = at_half(chosen(calibrated[name]), y_test)
    low, high = min(chosen.probabilities), max(chosen.probabilities)
    before = 100 * ece(test[name], y_test).item()
    after = 100 * ece(calibrated[name], y_test).item()
    f1 = 100 * decided[name]["CF1"].item()
    print(
        f"{name:22}{before:8.1f}{after:7.1f}   {low:.2f} to {high:.2f}"
        f"{100 * chosen.macro_f1:17.1f}{f1:8.1f}"
    )

# %% F1 over the digits, before and after
figure, axes = plt.subplots(figsize=(7.6, 2.6), layout="constrained")
for number, (label, found) in enumerate(
    (("at one half", half), ("calibrated, own thresholds", decided))
):
    places = [place - 0.2 + 0.4 * number for place in range(len(found))]
    bars = axes.barh(
        places,
        [100 * one["CF1"].item() for one in found.values()],
        height=0.38,
        label=label,
    )
    axes.bar_label(bars, fmt="%.1f", padding=3)
axes.set_yticks(range(len(half)), list(half))
axes.set(xlabel="CF1 on test data, %", xlim=(0, 112))
axes.invert_yaxis()
axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=2)
figure.savefig("multi_label_f1.svg")

# %% [markdown]
# ## The same by commands
#
#     equipoise train --data photos.csv --loss asl
#     equipoise evaluate runs/photos-asl-0/predictions/test.npz
#
# In tables an empty cell of a column `label_CLASS` is an unknown label; in
# arrays it is -1. `equipoise train` fits temperature and thresholds on
# validation data, and `equipoise export` packs them with the model.
# [Training](../training.md), [Data](../data.md),
# [Calibration](../calibration.md).
