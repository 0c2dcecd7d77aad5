"""Augmentations: their effect on images, labels and label maps, and reproducibility by seed."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from equipoise.data.augment import (
    AUGMENTATIONS,
    Colour,
    Compose,
    Crop,
    CutMix,
    Erase,
    Flip,
    Mixup,
    RandAugment,
    augmentations_from,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(n=64, channels=3, size=(12, 10), maps=False):
    draw = seeded(7)
    images = torch.rand(n, channels, *size, generator=draw)
    shape = (n, *size) if maps else (n,)
    return images, torch.randint(5, shape, generator=draw)


EVERY = [Flip(), Crop(3), Colour(), Erase(), Mixup(5), CutMix(5), RandAugment(3, 0.8)]


@pytest.mark.parametrize("augment", EVERY, ids=lambda augment: type(augment).__name__)
@pytest.mark.parametrize("channels", [1, 3])
def test_same_seed_same_batch_and_inputs_untouched(augment, channels):
    images, labels = batch(channels=channels)
    kept = images.clone(), labels.clone()
    first, second, other = (augment(images, labels, seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(images, kept[0])
    assert torch.equal(labels, kept[1])
    assert first[0].shape == images.shape
    assert first[0].min() >= 0.0
    assert first[0].max() <= 1.0 + 1e-6


@pytest.mark.parametrize("augment", [Flip(), Crop(3), Erase(), RandAugment(2, 1.0)], ids=lambda a: type(a).__name__)
def test_label_maps_move_with_their_images(augment):
    _, labels = batch(maps=True, size=(16, 16))
    labels[:, 4:12, 4:12] = 4  # smooth enough for a bilinear and a nearest sampling to agree inside
    images = (labels == 4).float().unsqueeze(1).repeat(1, 3, 1, 1)
    moved, maps = augment(images, labels, seeded())
    sure = (moved[:, 0] > 0.99) & (maps != -100)
    assert sure.any()
    assert (maps[sure] == 4).float().mean() > 0.97
    if not isinstance(augment, (Erase, RandAugment)):
        assert torch.equal(moved[:, 0] == 1.0, maps == 4)


def test_flip_mirrors_about_half():
    images, labels = batch(400)
    flipped, _ = Flip(0.5)(images, labels, seeded())
    mirrored = (flipped == images.flip(-1)).all(1).all(1).all(1)
    same = (flipped == images).all(1).all(1).all(1)
    assert (mirrored ^ same).all()
    assert 0.4 < mirrored.float().mean() < 0.6
    assert torch.equal(Flip(1.0)(images, labels, seeded())[0], images.flip(-1))
    assert torch.equal(Flip(0.0)(images, labels, seeded())[0], images)


def test_crop_is_a_window_of_the_padded_image():
    images, labels = batch(50, size=(6, 6))
    cropped, _ = Crop(2)(images, labels, seeded())
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    windows = set()
    for image, window in zip(padded, cropped, strict=True):
        offsets = [(i, j) for i in range(5) for j in range(5) if torch.equal(image[:, i : i + 6, j : j + 6], window)]
        assert offsets
        windows.add(offsets[0])
    assert len(windows) > 10
    assert torch.equal(Crop(0)(images, labels, seeded())[0], images)


def test_crop_marks_what_comes_from_outside():
    images, labels = batch(20, maps=True)
    _, maps = Crop(3, fill=255)(images, labels, seeded())
    assert (maps == 255).any()
    assert set(maps.unique().tolist()) <= {0, 1, 2, 3, 4, 255}


def test_erase_blacks_out_a_share():
    images, labels = torch.ones(300, 1, 32, 32), torch.zeros(300, dtype=torch.long)
    erased, _ = Erase(1.0, 0.1, 0.2)(images, labels, seeded())
    share = (erased == 0).float().mean((1, 2, 3))
    assert share.max() <= 0.24  # whole pixels
    assert share.mean() > 0.05
    assert torch.equal(Erase(0.0)(images, labels, seeded())[0], images)


def test_erase_with_noise_fills_the_same_rectangles():
    images, labels = torch.full((300, 3, 32, 32), 2.0), torch.zeros(300, dtype=torch.long)
    (erase,) = augmentations_from("erase-noise:0.6:0.1:0.2", num_classes=5).steps
    assert erase == Erase(0.6, 0.1, 0.2, noise=True)
    noisy, _ = erase(images, labels, seeded())
    black, _ = Erase(0.6, 0.1, 0.2)(images, labels, seeded())
    erased = black == 0
    assert torch.equal(noisy != 2.0, erased)
    assert 0.5 < erased.flatten(1).any(1).float().mean() < 0.7
    values = noisy[erased]
    assert values.unique().numel() > 0.99 * values.numel()  # new for each pixel and channel
    assert 0 <= values.min() < 0.01
    assert 0.99 < values.max() < 1
    assert_close(values.mean(), torch.tensor(0.5), atol=0.01, rtol=0)
    assert torch.equal(noisy, erase(images, labels, seeded())[0])


def test_mixup_mixes_images_and_labels_by_the_same_share():
    images, labels = batch(32)
    images = labels.view(-1, 1, 1, 1).float().expand(-1, 3, 12, 10) / 4  # the image says its label
    mixed, dense = Mixup(5, alpha=1.0)(images, labels, seeded(3))
    assert dense.shape == (32, 5)
    assert_close(dense.sum(1), torch.ones(32))
    assert_close(mixed[:, 0, 0, 0] * 4, dense @ torch.arange(5.0))
    many = torch.nn.functional.one_hot(labels, 5)
    assert_close(Mixup(5, alpha=1.0)(images, many, seeded(3))[1], dense)


def test_cutmix_pastes_what_its_labels_say():
    labels = torch.arange(40) % 5
    images = labels.view(-1, 1, 1, 1).float().expand(-1, 1, 16, 16) / 4
    mixed, dense = CutMix(5)(images, labels, seeded(1))
    assert_close((mixed * 4).mean((1, 2, 3)), dense @ torch.arange(5.0), atol=1e-5, rtol=0)
    assert ((dense > 0).sum(1) > 1).any()


def test_mixing_refuses_label_maps():
    images, maps = batch(maps=True)
    for augment in (Mixup(5), CutMix(5)):
        with pytest.raises(ValueError, match="label maps"):
            augment(images, maps, seeded())


def test_beta_of_mixup_has_its_moments():
    images = torch.zeros(2, 1, 2, 2)
    labels = torch.tensor([0, 1])
    shares = np.array([float(Mixup(2, alpha=0.5)(images, labels, seeded(s))[1][0].max()) for s in range(2000)])
    # the larger of share and 1 - share, of Beta(1/2, 1/2): 1/2 + 1/pi on average; half the time an image meets itself
    assert shares[shares < 1].mean() == pytest.approx(0.5 + 1 / np.pi, abs=0.02)


def test_strength_zero_changes_nothing():
    images, labels = batch()
    assert_close(Colour(0.0, 0.0, 0.0)(images, labels, seeded())[0], images)
    changed, _ = RandAugment(0)(images, labels, seeded())
    assert torch.equal(changed, images)


def test_compose_and_parsing():
    compose = augmentations_from(" flip:1.0, crop:0 ", num_classes=5)
    assert compose == Compose((Flip(1.0), Crop(0)))
    images, labels = batch()
    assert torch.equal(compose(images, labels, seeded())[0], images.flip(-1))
    assert augmentations_from("", num_classes=5) == Compose(())
    for name in AUGMENTATIONS:
        assert len(augmentations_from(name, num_classes=5).steps) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("spin", "list of flip, crop"),
        ("crop:x", "'crop:x' cannot be parsed"),
        ("flip:2", "p must be"),
        ("mixup:0", "alpha"),
    ],
)
def test_bad_words(text, words):
    with pytest.raises(ValueError, match=words):
        augmentations_from(text, num_classes=5)
