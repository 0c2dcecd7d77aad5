"""Calibrate the probabilities of a trained model.

A fit on held-out logits and targets returns a calibrator that maps logits to logits:

>>> import torch
>>> from equipoise.calibration import fit_temperature
>>> logits = torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [4.0, 0.0]])
>>> fitted = fit_temperature(logits, torch.tensor([0, 1, 0, 1]))  # three of four are right
>>> print(fitted.describe())
temperature 3.641: less confident, same predictions (2 classes, fitted on 4 rows); 4 rows are few
"""

from __future__ import annotations

from equipoise.calibration.dirichlet import DirichletCalibration, fit_dirichlet
from equipoise.calibration.fitted import CalibrationWarning, Fitted
from equipoise.calibration.focal import FocalPosterior, fit_focal, focal_posterior
from equipoise.calibration.groups import GroupTemperatures, fit_group_temperatures
from equipoise.calibration.histogram import HistogramBinning, fit_histogram
from equipoise.calibration.inputs import logits_from_probs
from equipoise.calibration.isotonic import IsotonicCalibration, fit_isotonic
from equipoise.calibration.labels import LabelTemperatures, fit_label_temperatures
from equipoise.calibration.methods import METHODS, Method, temperature_scaling
from equipoise.calibration.prior import PriorCorrection, correct_prior, estimate_prior, fit_prior
from equipoise.calibration.storage import load, save
from equipoise.calibration.temperature import Temperature, fit_temperature
from equipoise.calibration.thresholds import Thresholds, fit_thresholds
from equipoise.calibration.vector import VectorScaling, fit_vector

__all__ = [
    "METHODS",
    "CalibrationWarning",
    "DirichletCalibration",
    "Fitted",
    "FocalPosterior",
    "GroupTemperatures",
    "HistogramBinning",
    "IsotonicCalibration",
    "LabelTemperatures",
    "Method",
    "PriorCorrection",
    "Temperature",
    "Thresholds",
    "VectorScaling",
    "correct_prior",
    "estimate_prior",
    "fit_dirichlet",
    "fit_focal",
    "fit_group_temperatures",
    "fit_histogram",
    "fit_isotonic",
    "fit_label_temperatures",
    "fit_prior",
    "fit_temperature",
    "fit_thresholds",
    "fit_vector",
    "focal_posterior",
    "load",
    "logits_from_probs",
    "save",
    "temperature_scaling",
]
