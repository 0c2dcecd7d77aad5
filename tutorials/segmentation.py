# %% [markdown]
# # Segmentation with recall loss
#
# In a street scene most pixels are road, and in a scan most are healthy tissue.
# With inverse-frequency weights the network predicts rare classes everywhere;
# without weights it hardly predicts them. Recall loss weights each class by the
# fraction of its pixels that is still missed, batch by batch: a class that is
# recalled needs no weight, however rare it is. The data are canvases with
# handwritten digits; the digit 0 is on every second canvas, the digit 9 on
# every hundredth, and everything else is background.

# %% The data
import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap
from torch import nn

import equipoise
from equipoise import metrics
from equipoise.data import digit_maps
from equipoise.losses import current_settings

torch.set_num_threads(1)  # the networks are small
data = digit_maps()
(x_train, y_train), (x_test, y_test) = (
    (
        torch.from_numpy(split.inputs).float().div(255),
        torch.from_numpy(split.labels),
    )
    for split in (data.train, data.test)
)
pixels = torch.bincount(y_train.flatten(), minlength=11)
print(
    f"{len(x_train)} training and {len(x_test)} test canvases, 32 x 32 pixels"
)
for name, count in zip(data.class_names, pixels.tolist(), strict=True):
    print(f"{name:>10} {count:9,} pixels, {100 * count / pixels.sum():6.3f} %")

# %% [markdown]
# ## Three losses
#
# `RecallLoss` counts true positives and misses in the pass that computes the
# loss. `momentum` averages the recall over batches, which matters if a batch
# contains few pixels of a class. The running values are buffers in
# `state_dict`; `eval()` freezes them.

# %% Training
EPOCHS = 12


def train(loss):
    torch.manual_seed(0)
    # 4 x 4 blocks and their neighbours as input, one prediction per pixel
    model = nn.Sequential(
        nn.PixelUnshuffle(4),
        nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 16 * 11, 1),
        nn.PixelShuffle(4),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    steps = EPOCHS * -(-len(x_train) // 25)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 8e-3, total_steps=steps
    )
    weights = []
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x_train)).split(25):
            optimizer.zero_grad()
            loss(model(x_train[batch]), y_train[batch]).backward()
            optimizer.step()
            schedule.step()
            weights.append(current_settings(loss).get("recall_weights"))
    return model.eval(), weights


losses = {
    "cross-entropy": equipoise.CrossEntropyLoss(),
    "inverse frequency": equipoise.InverseFrequencyLoss(pixels.tolist()),
    "recall": equipoise.RecallLoss(num_classes=11, momentum=0.1),
}
trained = {name: train(loss) for name, loss in losses.items()}

# %% [markdown]
# ## Results by class
#
# Recall is the fraction of the pixels of a class that are predicted correctly.
# Precision is the fraction of the pixels predicted as a class that belong to
# it; a class that is never predicted has no precision and is excluded from that
# mean. IoU accounts for both kinds of error.

# %% Scores on the test canvases
scores = {}
print(
    f"{'':20}{'mean IoU':>10}{'mean recall':>13}"
    f"{'mean precision':>16}{'pixels right':>14}"
)
for name, (model, _) in trained.items():
    measure = metrics.SegmentationScores(num_classes=11)
    with torch.no_grad():
        for images, maps in zip(
            x_test.split(250), y_test.split(250), strict=True
        ):
            measure.update(model(images), maps)
    scores[name] = result = measure.compute()
    values = [
        result["mean_iou"],
        result["mean_accuracy"],
        result["precision"].nanmean(),
        result["pixel_accuracy"],
    ]
    iou, recall, precision, right = (100 * value.item() for value in values)
    print(f"{name:20}{iou:10.1f}{recall:13.1f}{precision:16.1f}{right:14.2f}")

# %% Recall and precision of each class
figure, axes = plt.subplots(
    1, 2, figsize=(7.6, 3), layout="constrained", sharey=True
)
for place, (title, key) in zip(
    axes,
    (("recall, %", "accuracy"), ("precision, %", "precision")),
    strict=True,
):
    for (name, result), marker in zip(scores.items(), "o^s", strict=True):
        place.plot(100 * result[key], marker=marker, label=name)
    place.set_xticks(range(11), ["back-\nground", *data.class_names[1:]])
    place.set_title(title, loc="left")
    place.grid(axis="y")
axes[0].legend(loc="lower left")
figure.savefig("segmentation_classes.svg")

# %% [markdown]
# Cross-entropy is precise and misses the rarest digits. Inverse frequency finds
# nearly all of them but predicts them too large, because an error on a
# background pixel costs next to nothing. Recall loss is between the two,
# without counts and without weights to tune. Which one is best depends on the
# cost of misses and of false alarms. By mean IoU it is cross-entropy on these
# small canvases; on [CamVid](../experiments.md#camvid) there is no significant
# difference with two seeds.

# %% A canvas with rare digits (grey 7, olive 8): truth and predictions
rare = (y_test >= 8).flatten(1).sum(1).argmax()
colours = ListedColormap(
    ["#f2f2f2", *(plt.get_cmap("tab10")(digit) for digit in range(10))]
)
figure, axes = plt.subplots(1, 4, figsize=(7.6, 2.2), layout="constrained")
with torch.no_grad():
    answers = {
        name: model(x_test[rare : rare + 1]).argmax(1)[0]
        for name, (model, _) in trained.items()
    }
for place, (name, picture) in zip(
    axes, {"ground truth": y_test[rare], **answers}.items(), strict=True
):
    place.imshow(
        picture, cmap=colours, vmin=0, vmax=10, interpolation="nearest"
    )
    place.set_title(name)
    place.set_axis_off()
figure.savefig("segmentation_canvas.svg")

# %% [markdown]
# ## How the weights change
#
# The weight of a class is one minus its running recall. All weights start near
# 1. The background is learned within an epoch and its weight decreases; common
# digits follow, then rarer ones. The rarest, on a dozen canvases, would need a
# longer training.

# %% Weights of recall loss during training
weights = torch.tensor(trained["recall"][1])
figure, axes = plt.subplots(figsize=(7.6, 2.8), layout="constrained")
for number, name in (
    (0, "background"),
    (1, "digit 0"),
    (4, "digit 3"),
    (7, "digit 6"),
    (10, "digit 9"),
):
    axes.plot(
        torch.arange(len(weights)) / len(weights) * EPOCHS,
        weights[:, number],
        label=name,
    )
axes.set(xlabel="epoch", ylabel="weight, 1 − recall", ylim=(0, 1.02))
axes.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.16))
axes.grid(axis="y")
figure.savefig("segmentation_weights.svg")

# %% [markdown]
# ## Your own data
#
#     equipoise compare --data camvid/ --image-size 180x240 --model unet \
#         --losses 'ce recall ce + 0.5 * dice lovasz'
#
# reads images with masks, Cityscapes and VOC in their existing layout
# ([Data](../data.md)). Losses and metrics ignore pixels of `ignore_index`.
# Under DDP, recall is computed over all processes; on CUDA devices the loss is
# one fused pass over the logits that also computes the counts
# ([Performance](../performance.md)).
