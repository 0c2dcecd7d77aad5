"""Images whose shades show their label maps, and a model for them."""

import numpy as np
from PIL import Image

from tests.data.making import mask

MODEL = '''
"""A model of one's own: every pixel by itself."""

from torch import nn


def pixels(num_classes, input_shape, width=16):
    return nn.Sequential(nn.Conv2d(input_shape[0], width, 1), nn.ReLU(), nn.Conv2d(width, num_classes, 1))
'''


def scene(images, masks, labels, seed, ignored=1):
    """Write an image and its mask: blocks of classes with one shade each, and ignored pixels."""
    draw = np.random.default_rng(seed)
    blocks = np.kron(draw.integers(0, len(labels), (4, 4)), np.ones((2, 2), int))
    image = np.linspace(20, 230, len(labels))[blocks].astype(np.uint8)
    images.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(images)
    values = np.array(labels)[blocks]
    values.flat[:ignored] = 255
    mask(masks, values, palette=True)
