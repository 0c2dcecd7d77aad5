# %% [markdown]
# # Multi-label data with unknown labels
#
# Annotations are rarely complete: some labels of an image are known to be
# present, some are known to be absent, and many are unknown. This tutorial
# shows the cost of treating unknown labels as negatives, the effect of the
# asymmetric loss, and how to choose the thresholds that turn probabilities into
# decisions. The data are canvases with up to ten different handwritten digits;
# the digit 0 is on every second canvas, the digit 9 on every hundredth.

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
# ## Remove half of the labels
#
# Unknown labels are marked by `-1`. Multi-label losses and metrics ignore them:
# they do not contribute to the value, the gradient or the denominator.

# %% Unknown labels
draw = torch.Generator().manual_seed(0)
unknown = torch.rand(y_train.shape, generator=draw) < 0.5
partial = y_train.masked_fill(unknown, -1)
known, there = (partial == 1).sum().item(), (y_train == 1).sum().item()
print(f"{known} of {there} digits are known to be present")
print(partial[:3])

# %% [markdown]
# ## Four ways to train
#
# A common mistake is to use 0 for unknown labels. It teaches the network that
# half of the digits are absent.

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
    "unknown ignored": (equipoise.BinaryCrossEntropyLoss(), partial),
    "the same, asymmetric": (equipoise.AsymmetricLoss(), partial),
    "all labels known": (equipoise.BinaryCrossEntropyLoss(), y_train),
}
models = {name: train(*way) for name, way in ways.items()}

# %% [markdown]
# mAP depends only on the ranking of the canvases for each digit, not on the
# scale of the scores. CP and CR are precision and recall at a threshold of one
# half, averaged over the digits; CF1 combines the two, and OF1 is computed over
# all digits together. Each network is trained once: differences of two or three
# points are noise.


# %% At a threshold of one half
def row(name, scores, average_precision):
    cells = "".join(
        f"{100 * scores[key].item():8.1f}" for key in ("CP", "CR", "CF1", "OF1")
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
# A threshold of one half is rarely the best choice: the first network
# underestimates all labels, and the asymmetric loss suppresses easy negatives,
# so its scores are too high. Two steps on validation data correct this.
# `fit_label_temperatures` turns the scores into probabilities, with one scale
# and one bias per label. `fit_thresholds` chooses the probability threshold
# with the highest F1 for each label; it estimates the expected F1 by
# cross-fitting.

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
    # the calibrator moves the thresholds to one half
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
for number, (label, scores) in enumerate(
    (("at one half", half), ("calibrated, per-label thresholds", decided))
):
    places = [place - 0.2 + 0.4 * number for place in range(len(scores))]
    bars = axes.barh(
        places,
        [100 * one["CF1"].item() for one in scores.values()],
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
# ## The same on the command line
#
#     equipoise train --data photos.csv --loss asl
#     equipoise evaluate runs/photos-asl-0/predictions/test.npz
#
# In tables, an empty cell of a column `label_CLASS` is an unknown label; in
# arrays it is -1. `equipoise train` fits temperature and thresholds on
# validation data, and `equipoise export` stores them with the model. See
# [Training](../training.md), [Data](../data.md) and
# [Calibration](../calibration.md).
