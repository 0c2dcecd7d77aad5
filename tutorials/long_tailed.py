# %% [markdown]
# # Long-tailed classification
#
# Some classes have a hundred training samples, others have two. A network
# trained with cross-entropy then recognises only the common ones. This tutorial
# shows which losses help, how much of the gain exceeds the noise, and how the
# probabilities change. The data are handwritten digits from scikit-learn;
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
    "images, balanced",
)

# %% [markdown]
# ## Check the counts
#
# On the command line this is `equipoise doctor --counts 100,64,...`:

# %% Warnings and suitable losses
for finding in look_at_counts(counts, data.class_names):
    print(
        textwrap.fill(f"{finding.level}: {finding.text} {finding.advice}", 78)
    )
print()
for suggestion in suggest("multiclass", counts):
    print(f"{suggestion.entry.name}:\n    {suggestion.why}")

# %% [markdown]
# ## Four losses, three seeds
#
# All losses use the same training loop. Each one replaces
# `nn.CrossEntropyLoss()`; `set_epoch` updates schedules and does nothing for
# losses without one. Deferred re-weighting (DRW) applies the class weights
# after 80 % of the training.

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
# `ShotAccuracy` groups the classes by their training counts: few is below 20,
# medium up to 100. Each row of the table shows the mean over the seeds and, in
# parentheses, the lowest and the highest value.

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
            runs = [100 * scores(logits)[0][group] for logits in of_seeds]
            mean, low, high = sum(runs) / SEEDS, min(runs), max(runs)
            row += f"{mean:5.1f} ({low:.1f}-{high:.1f})".rjust(18)
        print(row)


with torch.no_grad():
    logits = {
        name: [model(x_test) for model in of_seeds]
        for name, of_seeds in models.items()
    }
table(logits)

# %% [markdown]
# All three losses improve the rare classes at a small cost for the common ones.
# Class weights only act on samples that still have a loss, and a network that
# quickly fits its few samples leaves none: recall loss and deferred weights
# gain less here. Balanced softmax adds the logarithm of the training counts to
# the logits during training, which acts as a permanent margin.

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
# ## Correct an existing model
#
# Cross-entropy learns the class frequencies of the training set along with the
# digits. If the frequencies in use are different, they can be corrected after
# training: `correct_prior` subtracts the logarithm of the training counts from
# the logits. In these test data all digits are equally frequent, so the target
# prior is uniform.

# %% Cross-entropy with prior correction
uniform = [0.1] * 10
corrected = [
    calibration.correct_prior(one, train_counts=counts, target_prior=uniform)
    for one in logits["cross-entropy"]
]
table({"cross-entropy": logits["cross-entropy"], "prior corrected": corrected})

# %% [markdown]
# ## Are the probabilities calibrated?
#
# Not without calibration: the networks fit their 276 training images perfectly
# and are overconfident. A temperature, fitted on validation data, changes no
# prediction and corrects most of the error. ECE is the mean absolute difference
# between confidence and accuracy.

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
# ## The same with one command
#
#     equipoise compare --data digits-lt --model mlp --seeds 3 \
#         --losses 'ce recall ce(weight=drw) balanced-softmax'
#
# trains these losses on your own data, reports which differences are
# statistically significant, and writes a report:
# [Comparison](../comparison.md). [Systems](../systems.md) covers methods built
# around a classifier for long tails (decoupled heads, LDAM-DRW, cRT, BBN,
# OLTR).
