# %% [markdown]
# # Long-tailed classification
#
# Some classes have a hundred training samples, some have two. A network trained
# with cross-entropy then recognises the common ones. This page shows which loss
# helps, how much of the gain is more than luck, and what becomes of the
# probabilities. The data are handwritten digits that scikit-learn ships;
# everything runs in half a minute on two cores.

# %% The data
import textwrap

import matplotlib.pyplot as plt
import torch
from torch import nn

import equipoise
from equipoise import calibration, metrics
from equipoise.data import digits_lt
from equipoise.doctor import look_at_counts, suggest

torch.set_num_threads(1)  # the networks are small
data = digits_lt(ratio=50)
counts = data.train_counts.tolist()
(x_train, y_train), (x_val, y_val), (x_test, y_test) = (
    (
        torch.from_numpy(split.inputs).float().div(255).flatten(1),
        torch.from_numpy(split.labels),
    )
    for split in (data.train, data.val, data.test)
)
print("training images of the digits 0 to 9:", counts)
print(
    "validation:",
    len(x_val),
    "images, test:",
    len(x_test),
    "images, all classes alike",
)

# %% [markdown]
# ## What do the counts say?
#
# The same as `equipoise doctor --counts 100,64,...` on the command line:

# %% What to worry about, and which losses suit
for finding in look_at_counts(counts, data.class_names):
    print(
        textwrap.fill(f"{finding.level}: {finding.text} {finding.advice}", 78)
    )
print()
for suggestion in suggest("single", counts):
    print(f"{suggestion.entry.name}:\n    {suggestion.why}")

# %% [markdown]
# ## Four losses, three seeds
#
# One training loop for all. A loss stands where `nn.CrossEntropyLoss()` would
# stand; `set_epoch` moves schedules and does nothing for losses without one.
# Deferred re-weighting (DRW) switches the weights of rare classes on when 80 %
# of the training is over.

# %% Training
EPOCHS, SEEDS = 60, 3


def train(loss, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=2e-3, weight_decay=1e-2
    )
    for epoch in range(EPOCHS):
        loss.set_epoch(epoch)
        for batch in torch.randperm(len(x_train)).split(32):
            optimizer.zero_grad()
            loss(model(x_train[batch]), y_train[batch]).backward()
            optimizer.step()
    return model.eval()


deferred = equipoise.weights.Deferred(
    equipoise.weights.effective_number(counts), start=0.8
)
losses = {
    "cross-entropy": lambda: equipoise.CrossEntropyLoss(),
    "recall": lambda: equipoise.RecallLoss(num_classes=10),
    "cross-entropy, DRW": lambda: equipoise.CrossEntropyLoss(
        weight=deferred, epochs=EPOCHS
    ),
    "balanced softmax": lambda: equipoise.BalancedSoftmaxLoss(counts),
}
models = {
    name: [train(make(), seed) for seed in range(SEEDS)]
    for name, make in losses.items()
}

# %% [markdown]
# `ShotAccuracy` sorts the classes by their training counts: few is below 20,
# medium up to 100. A row of the table is the mean over the seeds and, in
# brackets, the lowest and the highest.

# %% Accuracy by number of training samples
shots = metrics.ShotAccuracy(train_counts=counts)
accuracy = metrics.Accuracy(num_classes=10)


def scores(logits):
    accuracy.reset(), shots.reset()
    accuracy.update(logits, y_test), shots.update(logits, y_test)
    groups = {name: value.item() for name, value in shots.compute().items()}
    return groups, accuracy.compute()["per_class"]


def table(logits_of):
    print(f"{'':20}{'medium':>18}{'few':>18}{'all':>18}")
    for name, of_seeds in logits_of.items():
        row = f"{name:20}"
        for group in ("medium", "few", "all"):
            found = [100 * scores(logits)[0][group] for logits in of_seeds]
            mean, low, high = sum(found) / SEEDS, min(found), max(found)
            row += f"{mean:5.1f} ({low:.1f}-{high:.1f})".rjust(18)
        print(row)


with torch.no_grad():
    logits = {
        name: [model(x_test) for model in of_seeds]
        for name, of_seeds in models.items()
    }
table(logits)

# %% [markdown]
# All three help the rare classes, and pay with a little on the common ones.
# Weights act only while a sample still has a loss, and a network that soon fits
# its few samples perfectly leaves none: recall loss and deferred weights gain
# less here. Balanced softmax adds the logarithm of the training counts to the
# logits while training, a margin that stays.

# %% Accuracy of each digit, mean over the seeds
figure, axes = plt.subplots(figsize=(7.6, 3.2), layout="constrained")
for name in ("cross-entropy", "balanced softmax"):
    per_class = torch.stack([scores(one)[1] for one in logits[name]]).mean(0)
    axes.plot(100 * per_class, marker="o", label=name)
axes.set_xticks(
    range(10), [f"{digit}\n{count}" for digit, count in enumerate(counts)]
)
axes.set(
    xlabel="digit, and its number of training images",
    ylabel="accuracy on test data, %",
    ylim=(0, 103),
)
axes.grid(axis="y")
axes.legend(loc="lower left")
figure.savefig("long_tailed_classes.svg")

# %% [markdown]
# ## A model that you already have
#
# Cross-entropy learns the frequencies of the training set along with the
# digits. Where those are not the frequencies of its use, they can be taken out
# afterwards, without training again: `correct_prior` subtracts the logarithm of
# the training counts from the logits. In these test data all digits are equally
# frequent, so that is what they call for.

# %% Cross-entropy with the training frequencies taken out
uniform = [0.1] * 10
corrected = [
    calibration.correct_prior(one, train_counts=counts, target_prior=uniform)
    for one in logits["cross-entropy"]
]
table({"cross-entropy": logits["cross-entropy"], "prior corrected": corrected})

# %% [markdown]
# ## Can the probabilities be trusted?
#
# Not as they are: the networks have fitted their 276 images perfectly and are
# too sure. A temperature, fitted on validation data, changes no prediction and
# repairs most of it. ECE is the mean distance between confidence and accuracy.

# %% Calibration before and after a temperature
ece, nll = metrics.CalibrationError(bins=15), metrics.NegativeLogLikelihood()
calibrated = {}
print(f"{'':20}{'ECE, %':>8}{'NLL':>8}{'T':>8}{'ECE, %':>8}{'NLL':>8}")
for name, of_seeds in models.items():
    with torch.no_grad():
        fits = [calibration.fit_temperature(m(x_val), y_val) for m in of_seeds]
    calibrated[name] = [
        fit(one) for fit, one in zip(fits, logits[name], strict=True)
    ]
    row = f"{name:20}"
    for some in (logits[name], calibrated[name]):
        error = sum(ece(one, y_test).item() for one in some) / SEEDS
        likelihood = sum(nll(one, y_test).item() for one in some) / SEEDS
        row += f"{100 * error:8.1f}{likelihood:8.3f}"
        if some is logits[name]:
            row += f"{sum(fit.temperature for fit in fits) / SEEDS:8.2f}"
    print(row)

# %% [markdown]
# ## The same by one command
#
#     equipoise compare --data digits-lt --model mlp --seeds 3 \
#         --losses 'ce recall ce(weight=drw) balanced-softmax'
#
# trains these losses and more on your own data, says which differences are more
# than the noise of seeds and of the test set, and writes a page:
# [Comparison](../comparison.md). What papers build around a classifier for long
# tails (decoupled heads, LDAM-DRW, cRT, BBN, OLTR) is in
# [Systems](../systems.md).
