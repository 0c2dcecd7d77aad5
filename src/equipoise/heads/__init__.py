"""Classifier heads: two heads on shared features, cosine classifiers, classifiers rebalanced after training."""

from __future__ import annotations

from equipoise.heads.attention import ModulatedAttention, insert_attention
from equipoise.heads.bilateral import BilateralModel, BranchMixing, bilateral, find_last_block
from equipoise.heads.cosine import CosineClassifier, normalize_classifier
from equipoise.heads.decoupled import DecoupledHead, DecoupledLogits, DecoupledLoss, DecoupledModel, decouple
from equipoise.heads.features import KeptFeatures, keep_features
from equipoise.heads.meta_embedding import CentroidMemory, MetaEmbedding, open_set_prediction
from equipoise.heads.nearest_mean import NearestClassMean
from equipoise.heads.rebalanced import (
    LearnableWeightScaling,
    TauChoice,
    choose_tau,
    scaled_classifier,
    tau_normalize,
    tau_normalized,
)
from equipoise.heads.retrained import retrain_classifier

__all__ = [
    "BilateralModel",
    "BranchMixing",
    "CentroidMemory",
    "CosineClassifier",
    "DecoupledHead",
    "DecoupledLogits",
    "DecoupledLoss",
    "DecoupledModel",
    "KeptFeatures",
    "LearnableWeightScaling",
    "MetaEmbedding",
    "ModulatedAttention",
    "NearestClassMean",
    "TauChoice",
    "bilateral",
    "choose_tau",
    "decouple",
    "find_last_block",
    "insert_attention",
    "keep_features",
    "normalize_classifier",
    "open_set_prediction",
    "retrain_classifier",
    "scaled_classifier",
    "tau_normalize",
    "tau_normalized",
]
