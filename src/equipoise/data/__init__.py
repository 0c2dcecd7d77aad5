"""Data: readers for common layouts, small embedded data sets, long-tailed subsampling, and samplers."""

from equipoise.data.arrays import Arrays, DataSet, Split, Task
from equipoise.data.embedded import EMBEDDED, digit_maps, digit_scenes, digits_lt
from equipoise.data.errors import DataError
from equipoise.data.files import FileImages, Masks
from equipoise.data.longtail import (
    exponential_counts,
    first_4000,
    first_4000_counts,
    pareto_counts,
    step_counts,
    subsample,
)
from equipoise.data.open_set import hold_out, open_samples
from equipoise.data.opening import open_data
from equipoise.data.samplers import SAMPLERS, ClassSampler, DeferredSampler, RepeatFactorSampler, sampler_for
from equipoise.data.splits import stratified_split
from equipoise.data.text import Texts, Vocabulary

__all__ = [
    "EMBEDDED",
    "SAMPLERS",
    "Arrays",
    "ClassSampler",
    "DataError",
    "DataSet",
    "DeferredSampler",
    "FileImages",
    "Masks",
    "RepeatFactorSampler",
    "Split",
    "Task",
    "Texts",
    "Vocabulary",
    "digit_maps",
    "digit_scenes",
    "digits_lt",
    "exponential_counts",
    "first_4000",
    "first_4000_counts",
    "hold_out",
    "open_data",
    "open_samples",
    "pareto_counts",
    "sampler_for",
    "step_counts",
    "stratified_split",
    "subsample",
]
