# %% [markdown]
# # Calibrate an existing model
#
# Calibration improves the probabilities of a trained model without changing the
# model. All you need is a few hundred held-out samples with their labels, and
# the logits or probabilities of the model on them. This tutorial calibrates an
# overconfident scikit-learn classifier, saves the fit, and adapts it to other
# class frequencies.

# %% A model, its probabilities on held-out samples, and the labels
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from equipoise import calibration, metrics

torch.set_num_threads(1)  # the fits are small
images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))
train, fit_on, test = np.split(order, [150, 750])
noisy = images + np.random.default_rng(1).normal(
    0, 2, images.shape
)  # a bad camera
model = MLPClassifier(
    hidden_layer_sizes=(64,), alpha=0, max_iter=2000, random_state=0
).fit(noisy[train], labels[train])

# %% [markdown]
# Everything below uses logits. If a model returns probabilities only,
# `logits_from_probs` converts them into logits with the same softmax.

# %% Predictions of the model
held_out, unseen = (
    calibration.logits_from_probs(
        torch.from_numpy(model.predict_proba(noisy[part]))
    )
    for part in (fit_on, test)
)
truth, y_test = torch.from_numpy(labels[fit_on]), torch.from_numpy(labels[test])
confidence, prediction = unseen.softmax(1).max(1)
right, confident = prediction == y_test, confidence > 0.99
print(
    f"{len(test)} test samples: accuracy {100 * right.double().mean():.1f} %,"
)
print(f"mean confidence {100 * confidence.mean():.1f} %;")
wrong = (confident & ~right).sum()
print(f"{confident.sum()} have a confidence above 99 %, {wrong} of them wrong")

# %% [markdown]
# ## A temperature
#
# A temperature is a single number that divides all logits. It changes the
# confidence but no prediction.

# %% The temperature, and what it does
fitted = calibration.fit_temperature(held_out, truth)
print(fitted.describe())


HEAD = f"{'':24}{'accuracy, %':>12}{'ECE, %':>8}{'classwise, %':>14}{'NLL':>8}"


def report(name, logits):
    ece = metrics.CalibrationError()(logits, y_test).item()
    classwise = metrics.CalibrationError(kind="classwise")(
        logits, y_test
    ).item()
    nll = metrics.NegativeLogLikelihood()(logits, y_test).item()
    right = (logits.argmax(1) == y_test).double().mean().item()
    print(
        f"{name:24}{100 * right:12.1f}{100 * ece:8.1f}"
        f"{100 * classwise:14.1f}{nll:8.3f}"
    )


print(f"\n{HEAD}")
report("uncalibrated", unseen)
report("with temperature", fitted(unseen))

# %% [markdown]
# In a reliability diagram every point is a bin of samples: their mean
# confidence and their accuracy. A calibrated model is on the diagonal; an
# overconfident one is below it.

# %% Reliability before and after
figure, axes = plt.subplots(figsize=(4.6, 4), layout="constrained")
axes.axline((0, 0), slope=1, linestyle=":", color="0.5")
for name, logits, marker in (
    ("uncalibrated", unseen, "o"),
    ("with temperature", fitted(unseen), "s"),
):
    measure = metrics.CalibrationError(bins=10)
    measure.update(logits, y_test)
    curve = measure.curve()
    filled = curve.count >= 5
    axes.plot(
        100 * curve.confidence[filled],
        100 * curve.accuracy[filled],
        marker=marker,
        label=name,
    )
axes.set(
    xlabel="confidence, %",
    ylabel="accuracy, %",
    xlim=(0, 102),
    ylim=(0, 102),
    aspect="equal",
)
axes.legend(loc="upper left")
figure.savefig("calibrate_reliability.svg")

# %% [markdown]
# ## Other methods
#
# Vector scaling has one scale and one bias per class, Dirichlet calibration a
# matrix; both are shrunk towards the common temperature, and both may change
# predictions. Dirichlet calibration gains accuracy here: from four times as
# many samples as in the training, it learns which digits the model confuses.
# Isotonic regression and histogram binning fit a curve for each class and need
# more samples than are available here.

# %% Five methods, fitted on 600 samples
print(HEAD)
report("uncalibrated", unseen)
for name in ("temperature", "vector", "dirichlet", "isotonic", "histogram"):
    report(name, getattr(calibration, f"fit_{name}")(held_out, truth)(unseen))

# %% [markdown]
# ## Save and load
#
# Fits can be printed and compared, and saved to and loaded from JSON files,
# without pickle.

# %% Saved and loaded
calibration.save(fitted, "temperature.json")
again = calibration.load("temperature.json")
print(again == fitted, torch.equal(again(unseen), fitted(unseen)))

# %% [markdown]
# ## Label shift
#
# Suppose that the model is used where the digit 0 is twenty times as frequent
# as the digit 9. Calibrated probabilities can be converted to the new class
# frequencies if these are known, and even if they are not: EM estimates them
# from unlabelled samples.

# %% Test samples subsampled to a long tail
keep = torch.from_numpy(np.random.default_rng(2).random(len(test))) < (
    20.0 ** -(y_test / 9)
)
unseen, y_test = unseen[keep], y_test[keep]
there = torch.bincount(y_test, minlength=10)
counts = np.bincount(labels[train], minlength=10)
calibrated = fitted(unseen)
estimated = calibration.estimate_prior(calibrated, train_counts=counts)
print(
    "true frequencies, %:", (100 * there / there.sum()).round().int().tolist()
)
print("estimated, %:       ", [round(100 * value) for value in estimated])
print(f"\n{HEAD}")
report("with temperature", calibrated)
report(
    "+ estimated frequencies",
    calibration.correct_prior(
        calibrated, train_counts=counts, target_prior=estimated
    ),
)
known = there / there.sum()
report(
    "+ known frequencies",
    calibration.correct_prior(
        calibrated, train_counts=counts, target_prior=known
    ),
)

# %% [markdown]
# ## The same on the command line
#
#     equipoise evaluate preds.npz --html page.html
#     equipoise calibrate preds.npz --method temperature --out fit.json
#     equipoise calibrate --apply fit.json new.npz --out calibrated.npz
#
# These commands read logits or probabilities and labels of any framework
# ([Predictions](../predictions.md)). [Calibration](../calibration.md) lists
# every method, also for multi-label data and for label maps, with results for
# ten published networks.
