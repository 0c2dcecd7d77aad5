"""Models by name, and tools for the classifier of any model: find it, replace it, extract its features."""

from __future__ import annotations

from equipoise.models.classifier import (
    Classifier,
    FeaturesAndLogits,
    FeatureView,
    features_of,
    find_classifier,
    replace_classifier,
    set_prior_bias,
)
from equipoise.models.deeplab import DeepLabV3
from equipoise.models.densenet import DenseNet
from equipoise.models.initialize import he_initialize
from equipoise.models.mlp import MLP, LinearClassifier
from equipoise.models.registry import MODELS, ModelEntry, build_model
from equipoise.models.resnet import CifarResNet, ResNet, ResNetBody
from equipoise.models.text import TextBow, TextCNN, TextPoolingCNN, set_word_vectors
from equipoise.models.unet import UNet

__all__ = [
    "MLP",
    "MODELS",
    "CifarResNet",
    "Classifier",
    "DeepLabV3",
    "DenseNet",
    "FeatureView",
    "FeaturesAndLogits",
    "LinearClassifier",
    "ModelEntry",
    "ResNet",
    "ResNetBody",
    "TextBow",
    "TextCNN",
    "TextPoolingCNN",
    "UNet",
    "build_model",
    "features_of",
    "find_classifier",
    "he_initialize",
    "replace_classifier",
    "set_prior_bias",
    "set_word_vectors",
]
