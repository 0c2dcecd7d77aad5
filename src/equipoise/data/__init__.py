"""Data: small real data sets that need no download, long tails made on request, and samplers for them."""

from equipoise.data.arrays import Arrays, DataSet
from equipoise.data.embedded import EMBEDDED, digit_maps, digit_scenes, digits_lt
from equipoise.data.longtail import exponential_counts, pareto_counts, step_counts, subsample
from equipoise.data.samplers import SAMPLERS, ClassSampler, RepeatFactorSampler, sampler_for

__all__ = [
    "EMBEDDED",
    "SAMPLERS",
    "Arrays",
    "ClassSampler",
    "DataSet",
    "RepeatFactorSampler",
    "digit_maps",
    "digit_scenes",
    "digits_lt",
    "exponential_counts",
    "pareto_counts",
    "sampler_for",
    "step_counts",
    "subsample",
]
