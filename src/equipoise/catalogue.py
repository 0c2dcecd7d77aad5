"""The catalogue: every named loss with its formula, its source and when to use it.

Tests, documentation and ``equipoise losses`` read it, so a new loss is available everywhere once it is listed here.
Looking up names does not import torch; building a loss does.

Notation: z logits, p = softmax(z) or sigmoid(z), y the target class, p_y its probability, t a dense target, w a weight,
n_c the training samples of class c, C classes, ε the label smoothing, ξ the weight of the high-confidence term.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import equipoise
from equipoise._suggestions import nearest

if TYPE_CHECKING:
    from torch import nn

    from equipoise.losses import Loss

__all__ = ["CATALOGUE", "Entry", "Link", "find", "long_tail"]

Link = Literal["softmax", "sigmoid", "region"]

_Scheduled = TypeVar("_Scheduled", bound="Loss")


@dataclass(frozen=True)
class Entry:
    """One loss of the catalogue.

    Args:
        name: name of the class, ``getattr(equipoise, name)``.
        build: function from the number of classes (labels) to an example of the loss.
        link: ``"softmax"`` (single-label, pixels, tokens), ``"sigmoid"`` (multi-label) or ``"region"``
            (segmentation: the overlap of whole regions).
        formula: the loss of one row, element or class, in the notation of this module.
        source: authors, year, (title) and place.
        use: when to use it and when not.
        short_names: other names that ``find`` accepts.
        known_as: the short name that commands and reports use, if it is not the name without "Loss".
    """

    name: str
    build: Callable[[int], nn.Module]
    link: Link
    formula: str
    source: str
    use: str
    short_names: tuple[str, ...] = ()
    known_as: str = ""

    @property
    def text(self) -> str:
        """Name in commands and reports: ``"ce"``, ``"balanced-softmax"``."""
        return self.known_as or self.names[1]

    @property
    def names(self) -> tuple[str, ...]:
        """Accepted names in commands: ``("RecallLoss", "recall", "recall-ce")``."""
        words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", self.name.removesuffix("Loss").replace("IoU", "Iou"))
        return tuple(dict.fromkeys([self.name, "-".join(words).lower(), *self.short_names]))

    @property
    def paper(self) -> str:
        """The source without the title: ``"Smith 2022, eq. 8–9"``."""
        return re.sub(r" \([^()]*\)", "", self.source)


def long_tail(num_classes: int, largest: int = 10_000, ratio: float = 100.0) -> list[int]:
    """Synthetic training counts that decrease from ``largest`` to ``largest / ratio`` exponentially.

    >>> long_tail(3)
    [10000, 1000, 100]
    """
    last = max(num_classes - 1, 1)
    return [max(1, round(largest * ratio ** (-index / last))) for index in range(num_classes)]


def _moved(loss: _Scheduled) -> _Scheduled:
    """The loss after ``set_epoch(3)``."""
    loss.set_epoch(3)
    return loss


_LIN = "Lin et al. 2017 (Focal Loss for Dense Object Detection)"
_MUKHOTI = "Mukhoti et al. 2020 (Calibrating Deep Neural Networks using Focal Loss)"
_SMITH = "Smith 2022 (Cyclical Focal Loss)"
_RIDNIK = "Ridnik et al. 2021 (Asymmetric Loss For Multi-Label Classification)"
_TIAN = "Tian et al. 2021 (Recall Loss for Imbalanced Image Classification and Semantic Segmentation)"

CATALOGUE: tuple[Entry, ...] = (
    # ------------------------------------------------------------------------------------------------ softmax link
    Entry(
        "CrossEntropyLoss",
        lambda num_classes: equipoise.CrossEntropyLoss(),
        "softmax",
        "−log p_y",
        "PyTorch (torch.nn.CrossEntropyLoss)",
        "Use it as the baseline, and for balanced classes; on a long tail it neglects rare classes, and large networks "
        "become overconfident.",
        ("ce", "softmax-ce", "nll"),
        "ce",
    ),
    Entry(
        "FocalLoss",
        lambda num_classes: equipoise.FocalLoss(gamma=2.0),
        "softmax",
        "−(1−p_y)^γ log p_y",
        f"{_LIN}, eq. 4; {_MUKHOTI}, section 4",
        "Use it when a network is overconfident or easy samples dominate hard ones (γ from 1 to 3); not for γ above 5, "
        "where gradients vanish early, and not as a remedy for imbalance alone.",
        ("fl",),
    ),
    Entry(
        "SampleDependentFocalLoss",
        lambda num_classes: equipoise.SampleDependentFocalLoss(),
        "softmax",
        "−(1−p_y)^γ(p_y) log p_y,  γ = 5 for p_y < 0.2, else 3",
        f"{_MUKHOTI}, sections 4 and 5.1",
        "Use it first when you need calibrated probabilities without tuning γ; not when temperature scaling on held- "
        "out data is sufficient.",
        ("flsd", "flsd-53", "flsd53"),
        "flsd-53",
    ),
    Entry(
        "CyclicalFocalLoss",
        lambda num_classes: _moved(equipoise.CyclicalFocalLoss(epochs=10)),
        "softmax",
        "−[ξ(e)(1+p_y)^γ_hc + (1−ξ(e))(1−p_y)^γ_lc] log p_y",
        f"{_SMITH}, eq. 8–9",
        "Use it as a drop-in replacement for cross-entropy on balanced and imbalanced data when the number of epochs "
        "is known; not when it is unknown, and not with γ_hc above 3.5, where the gradient of samples near p = 0.3 "
        "points away from their class.",
        ("cfl", "cyclical"),
    ),
    Entry(
        "AsymmetricSoftmaxLoss",
        lambda num_classes: equipoise.AsymmetricSoftmaxLoss(),
        "softmax",
        "−(1−ε+ε/C)(1−p_y)^γ₊ log p_y − Σ_{k≠y} (ε/C) p_k^γ₋ log p_k",
        f"{_RIDNIK}, eq. 4 and its published code for single labels; {_SMITH}, eq. 6–7",
        "Use it for single-label data with label smoothing whose pull towards unlikely classes should vanish; without "
        "smoothing γ₋ has no effect, so use FocalLoss instead.",
        ("asl-single", "asymmetric-single-label"),
    ),
    Entry(
        "CyclicalAsymmetricLoss",
        lambda num_classes: _moved(equipoise.CyclicalAsymmetricLoss(epochs=10)),
        "softmax",
        "ξ(e) L_hc + (1−ξ(e)) L_asl,  L_hc = −(1+p_y)^γ_hc log p_y",
        f"{_SMITH}, eq. 10",
        "Use it where CyclicalFocalLoss is suitable and labels are smoothed (in the paper the two are about even, this "
        "one ahead on Places-LT); not when the number of epochs is unknown.",
        ("casl",),
    ),
    Entry(
        "RecallLoss",
        lambda num_classes: equipoise.RecallLoss(num_classes),
        "softmax",
        "−(1−R_y) log p_y,  R_c = TP_c / (TP_c + FN_c)",
        f"{_TIAN}, eq. 5–8",
        "Use it for imbalanced segmentation and classification when rare classes must be found without many false "
        "positives; with many classes and small batches set momentum, and do not use it when all classes are already "
        "recalled.",
        ("recall-ce",),
    ),
    Entry(
        "PrecisionLoss",
        lambda num_classes: equipoise.PrecisionLoss(num_classes),
        "softmax",
        "−(1−P_y) log p_y,  P_c = TP_c / (TP_c + FP_c)",
        f"{_TIAN}, eq. 9",
        "Use it only to demonstrate why recall is the right weight; not for training: false positives of a class raise "
        "its weight, which causes more of them.",
    ),
    Entry(
        "InverseFrequencyLoss",
        lambda num_classes: equipoise.InverseFrequencyLoss(long_tail(num_classes)),
        "softmax",
        "−w_y log p_y,  w_c ∝ 1/n_c",
        f"{_TIAN}, eq. 2",
        "Use it as the simplest reweighting when all classes are equally important; not on extreme tails, where a few "
        "samples dominate the gradient and false positives multiply.",
        ("inverse", "inverse-freq", "inv-ce", "if"),
    ),
    Entry(
        "ClassBalancedLoss",
        lambda num_classes: equipoise.ClassBalancedLoss(long_tail(num_classes)),
        "softmax",
        "−w_y log p_y,  w_c ∝ (1−β)/(1−β^n_c)",
        "Cui et al. 2019 (Class-Balanced Loss Based on Effective Number of Samples)",
        "Use it for long tails as a milder inverse frequency, best started late in training; not with β so close to 1 "
        "that it equals inverse frequency, unless this is intended.",
        ("cb", "effective-number"),
    ),
    Entry(
        "LDAMLoss",
        lambda num_classes: equipoise.LDAMLoss(long_tail(num_classes)),
        "softmax",
        "−log p_y,  p = softmax(s(z − Δ_y e_y)),  Δ_c ∝ n_c^(−1/4)",
        "Cao et al. 2019 (Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss)",
        "Use it with cosine logits (a normalised classifier) and deferred re-weighting on long tails; not with plain "
        "linear logits, which the scale of 30 saturates.",
    ),
    Entry(
        "LogitAdjustedLoss",
        lambda num_classes: equipoise.LogitAdjustedLoss(long_tail(num_classes)),
        "softmax",
        "−log p_y,  p = softmax(z + τ log π),  π_c = n_c / Σ n",
        "Menon et al. 2021 (Long-tail learning via logit adjustment)",
        "Use it on long tails when the test set is balanced or rare classes are as important as common ones; not when "
        "the test set has the training frequencies.",
        ("la", "logit-adjustment"),
    ),
    Entry(
        "BalancedSoftmaxLoss",
        lambda num_classes: equipoise.BalancedSoftmaxLoss(long_tail(num_classes)),
        "softmax",
        "−log p_y,  p_k ∝ n_k exp(z_k)",
        "Ren et al. 2020 (Balanced Meta-Softmax for Long-Tailed Visual Recognition)",
        "Use it like LogitAdjustedLoss with τ = 1, without hyper-parameters to tune; not when the test set has the "
        "training frequencies.",
        ("bs", "balsm", "balanced-meta-softmax"),
    ),
    Entry(
        "OHEMLoss",
        lambda num_classes: equipoise.OHEMLoss(keep=0.7),
        "softmax",
        "−log p_y of the k hardest rows,  k = ⌊keep · valid rows⌋",
        "Shrivastava et al. 2016 (Training Region-based Object Detectors with Online Hard Example Mining)",
        "Use it for segmentation and detection where most pixels are easy background; not with noisy labels, which are "
        "the hardest rows.",
        ("hard-example-mining",),
    ),
    Entry(
        "BrierLoss",
        lambda num_classes: equipoise.BrierLoss(),
        "softmax",
        "Σ_k (p_k − t_k)²",
        "Brier 1950 (Verification of Forecasts Expressed in Terms of Probability)",
        "Use it for calibrated probabilities and some robustness to noisy labels, because its gradient is bounded; not "
        "with very many classes, where confident mistakes have almost no gradient.",
        ("squared-error",),
    ),
    Entry(
        "MMCELoss",
        lambda num_classes: equipoise.MMCELoss(),
        "softmax",
        "−log p_y + λ MMCE,  MMCE² a kernel distance between the confidences of correct and wrong rows",
        "Kumar et al. 2018 (Trainable Calibration Measures for Neural Networks from Kernel Mean Embeddings)",
        "Use it as a calibration baseline to compare with focal loss; it compares the rows of a batch, so do not use "
        "it with fewer than a hundred of them.",
        ("maximum-mean-calibration-error",),
    ),
    # ------------------------------------------------------------------------------------------------ sigmoid link
    Entry(
        "BinaryCrossEntropyLoss",
        lambda num_classes: equipoise.BinaryCrossEntropyLoss(),
        "sigmoid",
        "−t log p − (1−t) log(1−p)",
        "PyTorch (torch.nn.BCEWithLogitsLoss)",
        "Use it as the multi-label baseline, also with unknown labels; not when negatives outnumber positives a "
        "hundredfold.",
        ("bce", "bce-with-logits"),
        "bce",
    ),
    Entry(
        "BinaryFocalLoss",
        lambda num_classes: equipoise.BinaryFocalLoss(gamma=2.0),
        "sigmoid",
        "−t α (1−p)^γ log p − (1−t)(1−α) p^γ log(1−p)",
        f"{_LIN}, eq. 4–5",
        "Use it for dense detection, where nearly everything is an easy negative; not as the first choice for multi- "
        "label data, where it also reduces the gradient of rare positives (AsymmetricLoss does not).",
        ("sigmoid-focal", "bfl", "retinanet"),
    ),
    Entry(
        "AsymmetricLoss",
        lambda num_classes: equipoise.AsymmetricLoss(),
        "sigmoid",
        "−t (1−p)^γ₊ log p − (1−t) p_m^γ₋ log(1−p_m),  p_m = max(p−m, 0)",
        f"{_RIDNIK}, eq. 5–8",
        "Use it first for multi-label data with few positives or missing labels; not for single-label data (use "
        "AsymmetricSoftmaxLoss), and not when probabilities must be calibrated without a correction.",
        ("asl", "asymmetric-multi-label"),
        "asl",
    ),
    Entry(
        "DistributionBalancedLoss",
        lambda num_classes: equipoise.DistributionBalancedLoss(
            long_tail(num_classes), num_samples=2 * max(long_tail(num_classes))
        ),
        "sigmoid",
        "−w [t (1−p)^γ log p + (1−t) q^γ log(1−q)/λ],  p = σ(z+b), q = σ(λ(z+b))",
        "Wu et al. 2020 (Distribution-Balanced Loss for Multi-Label Classification in Long-Tailed Datasets)",
        "Use it for long-tailed multi-label data trained with class-aware resampling; not when labels are about "
        "equally frequent, where its many hyper-parameters are of no use.",
        ("db", "db-focal"),
    ),
    # ----------------------------------------------------------------------------------------------------- regions
    Entry(
        "SoftIoULoss",
        lambda num_classes: equipoise.SoftIoULoss(),
        "region",
        "1 − TP/(TP + FP + FN),  TP = Σ p t",
        "Rahman & Wang 2016 (Optimizing Intersection-Over-Union in Deep Neural Networks for Image Segmentation)",
        "Use it for segmentation evaluated by IoU, usually added to cross-entropy; not alone, because its gradient is "
        "weak at the start and its probabilities are not calibrated.",
        ("iou", "jaccard", "soft-jaccard"),
    ),
    Entry(
        "DiceLoss",
        lambda num_classes: equipoise.DiceLoss(),
        "region",
        "1 − 2 Σ p t / (Σ p + Σ t)",
        "Drozdzal et al. 2016 (The Importance of Skip Connections in Biomedical Image Segmentation)",
        "Use it for segmentation of small structures, usually added to cross-entropy; not when probabilities must be "
        "calibrated: it drives them to 0 and 1.",
        ("soft-dice", "f1"),
    ),
    Entry(
        "TverskyLoss",
        lambda num_classes: equipoise.TverskyLoss(alpha=0.3, beta=0.7),
        "region",
        "1 − TP/(TP + α FP + β FN)",
        "Salehi et al. 2017 (Tversky loss function for image segmentation using 3D fully convolutional deep networks)",
        "Use it like Dice when misses cost more than false alarms (β > α) or vice versa; not when you have no reason "
        "to prefer one kind of error: α = β = 0.5 is Dice.",
    ),
    Entry(
        "LovaszSoftmaxLoss",
        lambda num_classes: equipoise.LovaszSoftmaxLoss(),
        "region",
        "Σ_k e_(k) (J_k − J_{k−1}),  e = |t − p| sorted, J the Jaccard loss",
        "Berman et al. 2018 (The Lovász-Softmax loss: A tractable surrogate for the optimization of the "
        "intersection-over-union measure in neural networks)",
        "Use it to fine-tune a segmentation network that is evaluated by the IoU of its decisions; not from the first "
        "step, and not when sorting all pixels is too slow.",
        ("lovasz",),
    ),
)


def _key(name: str) -> str:
    """Letters and digits of a name in lower case, without a final "loss"."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower().replace("á", "a"))
    return letters.removesuffix("loss") or letters


def find(name: str) -> Entry:
    """The entry of a loss by its name or a short name; case, dashes, underscores and "Loss" do not matter.

    >>> find("flsd-53").name, find("focal").name, find("Cross_Entropy").name
    ('SampleDependentFocalLoss', 'FocalLoss', 'CrossEntropyLoss')
    """
    known = {_key(word): (entry, word) for entry in CATALOGUE for word in entry.names}
    if _key(name) in known:
        return known[_key(name)][0]
    listed = ", ".join(entry.text for entry in CATALOGUE)
    meant = nearest(_key(name), known, shown=lambda key: known[key][1], otherwise=f"known are {listed}")
    raise ValueError(f"name must be a loss of the catalogue, got {name!r}; {meant}")
