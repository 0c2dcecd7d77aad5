"""The numeric modules and the tests of each; the examples in its docstrings are among them without being listed.

Tests are ordered by time, so most mutants are killed in seconds. What runs in other processes or compiles is no part
of this: other processes do not see a mutant, and compilers take minutes.
"""

from __future__ import annotations

__all__ = ["DESELECTED", "NOT_NUMERIC", "PACKAGES", "TESTS"]

DESELECTED = "not (compil or inductor or process or import or ddp or needs_torch)"

POINTWISE = (
    "tests/test_defaults.py",
    "tests/golden/test_golden.py",
    "tests/losses/test_against_torch.py",
    "tests/losses/test_one_worker.py",
    "tests/losses/test_state.py",
    "tests/losses/test_identities.py",
    "tests/losses/test_catalogue_gradients.py",
    "tests/losses/test_ignored_rows.py",
    "tests/losses/test_default_dtype.py",
    "tests/losses/test_workers.py",
    "tests/test_ranges.py",
    "tests/losses/test_masked_classes.py",
    "tests/losses/test_second_derivatives.py",
    "tests/losses/test_extremes.py",
    "tests/losses/test_errors.py",
)
OBJECTIVES = ("tests/losses/test_objectives.py",)
REGION = (
    "tests/test_defaults.py",
    "tests/test_ranges.py",
    "tests/losses/test_one_worker.py",
    "tests/losses/test_region.py",
    "tests/losses/test_workers.py",
)
REFERENCE = (*POINTWISE, "tests/losses/test_backends.py", "tests/losses/test_transforms.py")
EVERY_LOSS = (*POINTWISE, *OBJECTIVES, *REGION)
WEIGHTS = (
    "tests/test_defaults.py",
    "tests/test_weights.py",
    "tests/golden/test_golden.py",
    "tests/losses/test_default_dtype.py",
    "tests/losses/test_state.py",
    "tests/losses/test_workers.py",
    "tests/test_ranges.py",
)
METRICS = (
    "tests/test_defaults.py",
    "tests/metrics/test_bin_edges.py",
    "tests/metrics/test_blocks.py",
    "tests/metrics/test_golden.py",
    "tests/metrics/test_values.py",
    "tests/metrics/test_against_others.py",
    "tests/metrics/test_precision.py",
    "tests/test_ranges.py",
    "tests/metrics/test_streaming.py",
    "tests/metrics/test_masked_scores.py",
    "tests/metrics/test_errors.py",
)
CALIBRATION = (
    "tests/test_defaults.py",
    "tests/calibration/test_precision.py",
    "tests/calibration/test_values.py",
    "tests/calibration/test_every_method.py",
    "tests/calibration/test_storage.py",
    "tests/calibration/test_published.py",
    "tests/calibration/test_masked_scores.py",
)
HEADS = ("tests/test_defaults.py", "tests/test_ranges.py", "tests/heads/test_ranges.py")
VERDICT = (
    "tests/comparison/test_candidates.py",
    "tests/comparison/test_judge_rules.py",
    "tests/comparison/test_verdict.py",
    "tests/comparison/test_recommendation.py",
)

RESAMPLING = (
    "tests/comparison/test_resampling.py",
    "tests/comparison/test_rare_classes.py",
    "tests/comparison/test_open_set.py",
)

PACKAGES = ("calibration", "heads", "losses", "metrics", "weights")
"""Packages of which every file is either below or not numeric; of others, the numeric files alone are below."""

TESTS: dict[str, tuple[str, ...]] = {
    "schedules.py": (
        "tests/test_defaults.py",
        "tests/test_ranges.py",
        "tests/test_schedules.py",
        "tests/golden/test_golden.py",
        "tests/losses/test_state.py",
    ),
    "weights/deferred.py": WEIGHTS,
    "weights/rebalanced.py": WEIGHTS,
    "weights/recall.py": (*WEIGHTS, "tests/losses/test_identities.py"),
    "weights/static.py": WEIGHTS,
    "losses/adjust.py": (*POINTWISE, "tests/test_public_surface.py"),
    "losses/asymmetry.py": (*POINTWISE, "tests/test_public_surface.py"),
    "losses/base.py": (
        *POINTWISE,
        "tests/losses/test_calling.py",
        "tests/losses/test_checkpointing.py",
        "tests/test_public_surface.py",
    ),
    "losses/modulate.py": (*POINTWISE, "tests/test_public_surface.py"),
    "losses/named.py": (*POINTWISE, *OBJECTIVES, "tests/test_public_surface.py"),
    "losses/objectives.py": (*OBJECTIVES, *POINTWISE, "tests/losses/test_calling.py"),
    "losses/class_weights.py": POINTWISE,
    "losses/reduce.py": EVERY_LOSS,
    "losses/region.py": (
        *REGION,
        "tests/golden/test_golden.py",
        "tests/losses/test_errors.py",
        "tests/losses/test_calling.py",
        "tests/test_public_surface.py",
    ),
    "losses/representation.py": (
        "tests/test_defaults.py",
        "tests/test_ranges.py",
        "tests/losses/test_representation.py",
        "tests/losses/test_errors.py",
    ),
    "losses/sigmoid.py": (*POINTWISE, "tests/losses/test_calling.py", "tests/test_public_surface.py"),
    "losses/softmax.py": (*POINTWISE, "tests/losses/test_calling.py", "tests/test_public_surface.py"),
    "losses/sums.py": ("tests/losses/test_sums.py",),
    "losses/off_target.py": ("tests/losses/test_off_target.py", "tests/losses/test_errors.py"),
    "losses/theory.py": ("tests/test_ranges.py", "tests/losses/test_theory.py", "tests/golden/test_golden.py"),
    "kernels/autograd.py": (*EVERY_LOSS, "tests/losses/test_transforms.py"),
    "kernels/cpu/blocks.py": EVERY_LOSS,
    "kernels/cpu/modulation.py": POINTWISE,
    "kernels/cpu/sigmoid.py": POINTWISE,
    "kernels/cpu/softmax.py": (*POINTWISE, *OBJECTIVES),
    "kernels/reference/lovasz.py": REGION,
    "kernels/reference/modulation.py": REFERENCE,
    "kernels/reference/region.py": REGION,
    "kernels/reference/sigmoid.py": REFERENCE,
    "kernels/reference/softmax.py": (*REFERENCE, *OBJECTIVES),
    "metrics/_inputs.py": METRICS,
    "metrics/_metric.py": METRICS,
    "metrics/accuracy.py": METRICS,
    "metrics/average_precision.py": METRICS,
    "metrics/binning.py": METRICS,
    "metrics/bootstrap.py": ("tests/metrics/test_bootstrap.py", *METRICS),
    "metrics/calibration.py": METRICS,
    "metrics/confidence.py": METRICS,
    "metrics/multilabel.py": METRICS,
    "metrics/open_set.py": ("tests/metrics/test_rejection.py", *METRICS),
    "metrics/rejection.py": ("tests/metrics/test_rejection.py", *METRICS),
    "metrics/scoring.py": METRICS,
    "metrics/segmentation.py": METRICS,
    "metrics/truth.py": ("tests/train/test_statistics.py",),
    "calibration/dirichlet.py": ("tests/calibration/test_linear.py", *CALIBRATION),
    "calibration/fitted.py": ("tests/calibration/test_temperature.py", *CALIBRATION),
    "calibration/focal.py": ("tests/calibration/test_focal.py", *CALIBRATION),
    "calibration/groups.py": ("tests/calibration/test_temperature.py", *CALIBRATION),
    "calibration/histogram.py": ("tests/calibration/test_one_vs_rest.py", *CALIBRATION),
    "calibration/inputs.py": ("tests/calibration/test_temperature.py", *CALIBRATION),
    "calibration/isotonic.py": ("tests/calibration/test_one_vs_rest.py", *CALIBRATION),
    "calibration/labels.py": ("tests/calibration/test_labels.py", *CALIBRATION),
    "calibration/linear.py": ("tests/calibration/test_linear.py", *CALIBRATION),
    "calibration/one_vs_rest.py": ("tests/calibration/test_one_vs_rest.py", *CALIBRATION),
    "calibration/prior.py": ("tests/calibration/test_prior.py", *CALIBRATION),
    "calibration/temperature.py": ("tests/calibration/test_temperature.py", *CALIBRATION),
    "calibration/thresholds.py": ("tests/calibration/test_labels.py", *CALIBRATION),
    "calibration/vector.py": ("tests/calibration/test_linear.py", *CALIBRATION),
    "heads/attention.py": (*HEADS, "tests/heads/test_attention.py"),
    "heads/bilateral.py": (*HEADS, "tests/heads/test_bilateral.py"),
    "heads/cosine.py": (*HEADS, "tests/heads/test_cosine.py"),
    "heads/decoupled.py": (*HEADS, "tests/heads/test_decoupled.py"),
    "heads/features.py": (*HEADS, "tests/heads/test_features.py", "tests/heads/test_retrained.py"),
    "heads/meta_embedding.py": (*HEADS, "tests/heads/test_meta_embedding.py"),
    "heads/nearest_mean.py": (*HEADS, "tests/heads/test_retrained.py", "tests/golden/test_golden.py"),
    "heads/rebalanced.py": (*HEADS, "tests/heads/test_rebalanced.py", "tests/heads/test_retrained.py"),
    "heads/retrained.py": (*HEADS, "tests/heads/test_retrained.py"),
    "comparison/resampling.py": RESAMPLING,
    "evaluation/sample_statistics.py": ("tests/evaluation/test_intervals.py", *RESAMPLING),
    "comparison/statistics.py": ("tests/comparison/test_variances.py", "tests/comparison/test_statistics.py"),
    "comparison/judge.py": VERDICT,
}

NOT_NUMERIC: dict[str, str] = {
    "calibration/methods.py": "the registry of the methods",
    "calibration/storage.py": "JSON in and out",
    "losses/fused.py": "launches Triton kernels, which tests/parity compares with the reference",
    "losses/typed_kwargs.py": "types of keyword arguments",
    "losses/recomputation.py": "tells a recomputation under activation checkpointing from a new batch",
    "losses/settings.py": "what a loss is set to, for logs",
}
