"""Defaults that results depend on, as documented; those of the named losses are in test_public_surface."""

import inspect
from importlib import import_module

import pytest

COMMON = {"ignore_index": -100, "ignore_value": -1, "from_logits": True, "validate": False, "sync": False}
COMMON |= {"detach_focus": False, "sync_counts": False}
COMMON |= {"converged": True, "class_names": (), "exact": True, "seed": 0, "dim": -1}
DEFAULTS = {
    "calibration": {
        "VectorScaling": {"log_probs": True},
        "correct_prior": {"shrinkage": 3.0},
        "estimate_prior": {"shrinkage": 3.0, "max_iter": 1000, "tolerance": 1e-7},
        "fit_dirichlet": {"shrinkage": None},
        "fit_group_temperatures": {"shrinkage": 10.0, "bounds": (0.01, 100.0)},
        "fit_histogram": {"bins": 15, "binning": "width"},
        "fit_label_temperatures": {"bias": False, "shrinkage": 10.0, "bounds": (0.01, 100.0)},
        "fit_prior": {"shrinkage": 3.0},
        "fit_temperature": {"by": "nll", "bounds": (0.01, 100.0)},
        "fit_thresholds": {"folds": 5, "min_positives": 1, "shrinkage": 10.0},
        "fit_vector": {"shrinkage": 1.0},
        "logits_from_probs": {"floor": 1e-12, "task": "multiclass"},
    },
    "heads": {
        "BranchMixing": {"start": 1.0, "stop": 0.0},
        "CentroidMemory": {"margin": 10.0, "repel": 0.01},
        "CosineClassifier": {"scale": 1.0},
        "MetaEmbedding": {"scale": 16.0, "reach": 10.0},
        "NearestClassMean": {"unit": True},
        "choose_tau": {"taus": tuple(step / 10 for step in range(21))},
        "normalize_classifier": {"scale": 1.0},
        "open_set_prediction": {"threshold": 0.1, "unknown": -1},
        "retrain_classifier": {
            "epochs": 10,
            "batch_size": 512,
            "lr": 0.2,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "power": 0.0,
        },
        "tau_normalized": {"keep_bias": False},
    },
    "metrics": {
        "Accuracy": {"top_k": (1, 5)},
        "CalibrationError": {"bins": 15, "norm": "l1", "binning": "width", "kind": "top", "resolution": 8192},
        "ConfidentShare": {"threshold": 0.99},
        "MultilabelAveragePrecision": {"average": "macro", "resolution": 4096},
        "MultilabelScores": {"threshold": 0.5, "top_k": None},
        "OpenSetScores": {"threshold": 0.1, "convention": "oltr", "unknown": -1, "resolution": 8192},
        "ShotAccuracy": {"convention": "kang", "cuts": (20, 100)},
        "accepting_threshold": {"share": 0.95},
        "bin_sums": {"num_groups": 1},
        "bootstrap": {"draws": 1000, "level": 0.95, "weighted": False},
        "shot_groups": {"convention": "kang", "cuts": (20, 100)},
    },
    "losses.sigmoid": {"SigmoidLoss": {"margin": 0.0, "reduction": "mean"}},
    "losses.softmax": {"SoftmaxLoss": {"label_smoothing": 0.0, "reduction": "mean"}},
    "losses.reduce": {},
    "losses.base": {},
    "calibration.inputs": {"logits_from_probs": {"floor": 1e-12, "task": "multiclass"}},
    "schedules": {"Cyclical": {"factor": 4.0}, "Parabolic": {"start": 1.0, "stop": 0.0}},
    "weights": {
        "Deferred": {"start": 0.8},
        "Rebalanced": {"alpha": 0.1, "beta": 10.0, "mu": 0.2},
        "RecallWeights": {"momentum": None, "min_errors": 1.0, "init": "first", "floor_average": False},
        "effective_number": {"beta": 0.9999},
    },
    "losses.adjust": {
        "Adjustment": {"offset": (), "tau": 1.0, "margin": (), "max_margin": 0.5, "scale": 1.0},
        "NegativeTolerance": {"offset": (), "neg_scale": 1.0},
        "logit_adjustment": {"tau": 1.0},
        "margin_adjustment": {"max_margin": 0.5, "scale": 30.0},
    },
    "losses.asymmetry": {
        "AdaptiveAsymmetry": {
            "start": 4.0,
            "gap_step": 0.01,
            "gamma_max": 10.0,
            "per_class": False,
            "margin": 0.0,
            "margin_step": None,
            "margin_max": 0.5,
        }
    },
    "losses.modulate": {
        "Modulation": {"gamma_pos": 0.0, "gamma_neg": None, "xi": 0.0, "gamma_hc": 0.0},
        "asymmetric": {"gamma_pos": 0.0, "gamma_neg": 4.0},
        "cyclical": {"gamma_hc": 3.0, "gamma_pos": 2.0, "gamma_neg": 2.0},
        "focal": {"gamma": 2.0},
    },
    "losses.objectives": {"MMCELoss": {"strength": 2.0}, "OHEMLoss": {"keep": 0.7, "min_kept": 0}},
    "losses.region": {
        "dice_loss": {"smooth": 0.0},
        "soft_iou_loss": {"smooth": 0.0},
        "lovasz_softmax_loss": {"per_image": False},
        "tversky_loss": {"alpha": 0.5, "beta": 0.5, "smooth": 0.0, "per_image": False},
        "DiceLoss": {"smooth": 0.0},
        "SoftIoULoss": {"smooth": 0.0},
        "TverskyLoss": {"alpha": 0.5, "beta": 0.5, "smooth": 0.0},
    },
    "losses.representation": {
        "LiftedStructureLoss": {"margin": 1.0},
        "RangeLoss": {"k": 2, "margin": 5.0, "intra": 1.0, "inter": 1.0},
    },
}


@pytest.mark.parametrize("module", DEFAULTS)
def test_defaults(module):
    package = import_module(f"equipoise.{module}")
    for name in package.__all__:
        try:
            parameters = inspect.signature(getattr(package, name)).parameters
        except (TypeError, ValueError):  # constants, types and warnings have none
            continue
        own = DEFAULTS[module].get(name, {})
        assert set(own) <= set(parameters)
        for key, expected in (COMMON | own).items():
            if key in parameters and parameters[key].default is not inspect.Parameter.empty:
                assert parameters[key].default == expected, (name, key)
