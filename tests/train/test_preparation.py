from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from equipoise.data import Arrays, DataError, FileImages, Masks, Texts, Vocabulary
from equipoise.data.files import path_array, read_image
from equipoise.train import preparation as module
from equipoise.train.preparation import Preparation

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (20, 3, 6, 5), dtype=np.uint8)
FEATURES = (RNG.normal(size=(50, 4)) * [1.0, 10.0, 0.0, 0.5] + [5.0, 0.0, 7.0, 2000.0]).astype(np.float32)
LABELS = np.zeros(50, np.int64)
TEXTS = ("the cat sat", "the cat", "the dog sat on the mat", "a bird")


def images(values=IMAGES):
    return Preparation.fit(Arrays(values, np.zeros(len(values), np.int64)))


def features():
    return Preparation.fit(Arrays(FEATURES, LABELS))


def texts():
    return Preparation.fit(Texts(TEXTS, np.zeros(4, np.int64)))


def files(folder, pictures, **options):
    paths = []
    for number, picture in enumerate(pictures):
        paths.append(folder / f"{number}.png")
        Image.fromarray(picture.transpose(1, 2, 0)).save(paths[-1])
    return FileImages(path_array(paths), np.zeros(len(paths), np.int64), **options)


def test_training_images_become_standard():
    preparation = images()
    seen = preparation.normalise(preparation.scale(torch.from_numpy(IMAGES))).double()
    assert preparation.input_shape == (3, 6, 5)
    assert seen.shape == IMAGES.shape
    assert_close(seen.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    assert_close(seen.var((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0)


def test_unit_scaling_keeps_pixels_in_0_to_1_and_features_as_they_are(tmp_path):
    preparation = Preparation.fit(Arrays(IMAGES, np.zeros(len(IMAGES), np.int64)), scaling="unit")
    assert_close(preparation.prepare(torch.from_numpy(IMAGES)), torch.from_numpy(IMAGES) / 255, rtol=0, atol=0)
    assert (preparation.mean, preparation.std) == ((0.0,) * 3, (1.0,) * 3)
    plain = Preparation.fit(Arrays(FEATURES, LABELS), scaling="unit")
    assert torch.equal(plain.prepare(torch.from_numpy(FEATURES)), torch.from_numpy(FEATURES))
    from_files = Preparation.fit(files(tmp_path, IMAGES), scaling="unit")
    assert (from_files.mean, from_files.std, from_files.input_shape) == ((0.0,) * 3, (1.0,) * 3, (3, 6, 5))
    text = Texts(TEXTS, np.zeros(4, np.int64))
    assert Preparation.fit(text, scaling="unit") == Preparation.fit(text)
    with pytest.raises(ValueError, match="scaling must be one of 'standard', 'unit', got 'none'"):
        Preparation.fit(text, scaling="none")


def test_the_mean_of_images_is_in_units_of_one_and_summed_over_parts(monkeypatch):
    whole = images()
    np.testing.assert_allclose(whole.mean, IMAGES.mean((0, 2, 3)) / 255)
    np.testing.assert_allclose(whole.std, IMAGES.std((0, 2, 3)) / 255)
    monkeypatch.setattr(module, "_parts", lambda inputs: np.array_split(inputs, 7))
    assert images() == whole


def test_parts_are_all_samples_in_order(monkeypatch):
    many = np.zeros((2**22 // 30 + 3, 30), np.uint8)
    assert [len(part) for part in module._parts(many)] == [2**22 // 30, 3]
    np.testing.assert_array_equal(np.concatenate(list(module._parts(IMAGES))), IMAGES)


def test_features_become_standard_and_constant_ones_stay_finite():
    preparation = features()
    seen = preparation.normalise(preparation.scale(torch.from_numpy(FEATURES)))
    assert preparation.std[2] == 1.0
    assert seen[:, 2].abs().max() == 0.0
    others = seen[:, [0, 1, 3]].double()
    assert_close(others.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-4, rtol=0)
    assert_close(others.var(0, correction=0), torch.ones(3, dtype=torch.float64), atol=1e-4, rtol=0)


def test_a_constant_that_rounds_badly_is_constant():
    constant = np.full((1001, 1), 0.1)  # the sum of these doubles is not 1001 times the number
    assert Preparation.fit(Arrays(constant, np.zeros(len(constant), np.int64))).std == (1.0,)


def test_image_files_are_sampled_evenly(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE", 3)
    split = files(tmp_path, [np.full((3, 4, 4), shade, np.uint8) for shade in (0, 9, 51, 9, 102)])
    preparation = Preparation.fit(split)
    np.testing.assert_allclose(preparation.mean, [0.2] * 3)  # of the first, the middle and the last
    assert preparation.input_shape == (3, 4, 4)


def test_sizes_of_files(tmp_path):
    pictures = [IMAGES[0], IMAGES[1][:, :4]]
    assert Preparation.fit(files(tmp_path, pictures)).input_shape is None
    chosen = Preparation.fit(files(tmp_path, pictures, size=(4, 8), fit="crop"))
    assert (chosen.input_shape, chosen.resize, chosen.upright) == ((3, 4, 8), "crop", True)


def test_images_with_masks_are_not_turned(tmp_path):
    split = files(tmp_path, [IMAGES[0]])
    masks = Masks(path_array(["0.png"]), np.ones((1, 2), np.int64), 255)
    assert not Preparation.fit(FileImages(split.paths, split.labels, masks=masks)).upright


def test_texts_become_tokens():
    preparation = texts()
    split = Texts(("The cat!", "an unknown dog"), np.array([1, 0]))
    arrays = preparation.as_arrays(split)
    assert preparation.words == Vocabulary.fit(TEXTS).words
    assert preparation.vocabulary == len(preparation.words) + 2
    assert preparation.length == 6
    assert arrays.inputs.dtype == np.int32
    np.testing.assert_array_equal(arrays.inputs, Vocabulary.fit(TEXTS).encode(split.texts, length=6))
    np.testing.assert_array_equal(arrays.labels, [1, 0])
    tokens = torch.from_numpy(arrays.inputs)
    assert_close(preparation.normalise(preparation.scale(tokens)), tokens.long())


def test_texts_are_cut_where_95_of_100_end():
    short = ("word " * 10,) * 96
    assert Preparation.fit(Texts((*short, *("word " * 200,) * 4), LABELS)).length == 10
    assert Preparation.fit(Texts(("word " * 1000,), LABELS)).length == 256


def test_arrays_stay_and_files_are_decoded(tmp_path):
    split = Arrays(IMAGES, np.zeros(20, np.int64))
    assert images().as_arrays(split) is split
    np.testing.assert_array_equal(images().as_arrays(files(tmp_path, IMAGES)).inputs, IMAGES)


def test_the_callers_tensors_are_not_written():
    preparation = features()
    given = torch.from_numpy(FEATURES.copy())
    preparation.normalise(preparation.scale(given))
    np.testing.assert_array_equal(given.numpy(), FEATURES)


def test_constants_made_in_inference_serve_in_training():
    preparation = images()
    with torch.inference_mode():
        preparation.normalise(preparation.scale(torch.from_numpy(IMAGES)))
    scaled = preparation.scale(torch.from_numpy(IMAGES)).requires_grad_()
    preparation.normalise(scaled).sum().backward()
    assert_close(
        scaled.grad[0, :, 0, 0].double(), 1 / torch.tensor(preparation.std, dtype=torch.float64), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_type_of_the_inputs_is_kept(dtype):
    scaled = images().scale(torch.from_numpy(IMAGES)).to(dtype)
    assert images().normalise(scaled).dtype is dtype


@pytest.mark.parametrize("given", [IMAGES, FEATURES], ids=["images", "features"])
def test_one_pass_is_both_steps(given):
    preparation, inputs = Preparation.fit(Arrays(given, np.zeros(len(given), np.int64))), torch.from_numpy(given)
    before = inputs.clone()
    prepared = preparation.prepare(inputs)
    assert prepared.dtype is torch.float32
    assert_close(prepared, preparation.normalise(preparation.scale(inputs)), rtol=1e-5, atol=1e-6)
    assert torch.equal(inputs, before)


@pytest.mark.parametrize("make", [images, features, texts])
def test_json_and_back(make):
    preparation = make()
    text = json.dumps(preparation.to_json(), allow_nan=False)
    assert Preparation.from_json(json.loads(text)) == preparation


def test_json_without_a_size_and_back(tmp_path):
    preparation = Preparation.fit(files(tmp_path, [IMAGES[0], IMAGES[1][:, :4]], fit="crop"))
    assert Preparation.from_json(json.loads(json.dumps(preparation.to_json()))) == preparation


def test_json_with_mistakes():
    stored = images().to_json()
    assert Preparation.from_json({**stored, "added_later": []}) == images()
    with pytest.raises(ValueError, match="input_shape is missing"):
        Preparation.from_json({name: value for name, value in stored.items() if name != "input_shape"})
    with pytest.raises(ValueError, match="got 3 and 0"):
        Preparation.from_json({name: value for name, value in stored.items() if name != "std"})
    with pytest.raises(ValueError, match="kind must be one of"):
        Preparation.from_json({**stored, "kind": "sound"})
    with pytest.raises(ValueError, match="std must be positive"):
        Preparation.from_json({**stored, "std": [1.0, 0.0, 1.0]})
    with pytest.raises(ValueError, match="a number for each channel, got 1 and 1"):
        Preparation.from_json({**stored, "std": [1.0], "mean": [0.0]})


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (Arrays(IMAGES[:0], LABELS[:0]), "must hold samples"),
        (Arrays(IMAGES.astype(np.float32), LABELS[:20]), "found float32 of shape"),
        (Arrays(FEATURES.astype(np.int64), LABELS), "found int64 of shape"),
        (Texts(("one two", "three"), LABELS[:2]), "must share words"),
    ],
)
def test_splits_that_cannot_be_prepared(split, message):
    with pytest.raises(DataError, match=message):
        Preparation.fit(split)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_channels_are_found_first_or_last(convert):
    expected = torch.from_numpy(IMAGES)
    last = np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1))
    assert_close(images().raw(convert(IMAGES)), expected)
    assert_close(images().raw(convert(last)), expected)
    assert_close(images().raw(convert(last[0])), expected[:1])
    assert_close(images().raw([convert(IMAGES[0]), convert(last[1])]), expected[:2])


def test_views_and_readonly_arrays_are_taken():
    turned = np.flip(IMAGES, 3)
    turned.flags.writeable = False
    assert_close(images().raw(turned), torch.from_numpy(turned.copy()))


def test_the_size_decides_where_channels_fit_both_places():
    wide = images(np.ascontiguousarray(IMAGES[..., :3]))  # (3, 6, 3)
    assert_close(wide.raw(IMAGES[..., :3]), torch.from_numpy(IMAGES[..., :3].copy()))
    assert wide.raw(np.zeros((2, 6, 3, 3), np.uint8)).shape == (2, 3, 6, 3)
    unknown = Preparation("images", None, wide.mean, wide.std)
    with pytest.raises(ValueError, match=r"leave no doubt which, got shape \(2, 3, 6, 3\)"):
        unknown.raw(np.zeros((2, 3, 6, 3), np.uint8))


def test_pictures_are_brought_to_the_size_of_training(tmp_path):
    path = tmp_path / "picture.png"
    Image.fromarray(RNG.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(path)
    expected = torch.from_numpy(read_image(path, (6, 5)))[None]
    with Image.open(path) as picture:
        for given in (path, str(path), picture, [path]):
            assert_close(images().raw(given), expected)
        assert_close(images().raw([picture, str(path)]), expected.repeat(2, 1, 1, 1))
    cut = Preparation("images", (3, 6, 5), (0.5,) * 3, (0.2,) * 3, resize="crop")
    assert_close(cut.raw(path), torch.from_numpy(read_image(path, (6, 5), "crop"))[None])


def test_pictures_become_grey_as_pillow_makes_them(tmp_path):
    path = tmp_path / "picture.png"
    picture = Image.fromarray(RNG.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    picture.save(path)
    grey = Preparation("images", (1, 16, 16), (0.5,), (0.2,))
    assert_close(grey.raw(path), torch.from_numpy(np.array(picture.convert("L")))[None, None])


def test_pictures_of_several_sizes(tmp_path):
    split = files(tmp_path, [IMAGES[0], IMAGES[1][:, :4]])
    preparation = Preparation.fit(split)
    assert preparation.raw(str(split.paths[1])).shape == (1, 3, 4, 5)
    with pytest.raises(ValueError, match="must have one size, got 4 x 5, 6 x 5"):
        preparation.raw([str(path) for path in split.paths])


def test_features_and_texts_as_users_have_them():
    one = FEATURES[0]
    for given in (one, one.tolist(), torch.from_numpy(one), one.astype(np.float64)):
        assert_close(features().raw(given), torch.from_numpy(one)[None])
    assert_close(features().raw(FEATURES.tolist()), torch.from_numpy(FEATURES))
    tokens = torch.from_numpy(texts().as_arrays(Texts(TEXTS, LABELS[:4])).inputs)
    assert_close(texts().raw(list(TEXTS)), tokens)
    assert_close(texts().raw(TEXTS[0]), tokens[:1])


@pytest.mark.parametrize(
    ("make", "data", "error", "message"),
    [
        (images, IMAGES / 255.0, TypeError, "must be uint8, got float64"),
        (images, IMAGES[:, :2], ValueError, r"\(N, 3, height, width\).*got shape \(20, 2, 6, 5\)"),
        (images, IMAGES[0, 0], ValueError, r"got shape \(6, 5\)"),
        (images, IMAGES[:, :, :4], ValueError, "must be 6 x 5 .* got 4 x 5"),
        (images, 5, TypeError, "paths, Pillow images, uint8 arrays or tensors, got int"),
        (images, [], ValueError, "at least one image"),
        (images, "nothing.png", DataError, "nothing.png: there must be an image"),
        (features, FEATURES[:, :3], ValueError, r"features \(N, 4\) .*got shape \(50, 3\)"),
        (features, [[1.0, 2.0, float("nan"), 3.0]], ValueError, "in row 0"),
        (features, ["a", "b", "c", "d"], TypeError, "must be numbers"),
        (texts, ["a", 3], TypeError, r"list of texts, got \"\['a', 3\]\""),
        (texts, [], TypeError, r"list of texts, got '\[\]'"),
        (texts, None, TypeError, "list of texts, got 'None'"),
    ],
)
def test_data_that_a_model_cannot_take(make, data, error, message):
    with pytest.raises(error, match=message):
        make().raw(data)


def test_pictures_for_a_model_of_other_channels(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "picture.png")
    with pytest.raises(ValueError, match="must have 4 channels"):
        Preparation("images", (4, 4, 4), (0.5,) * 4, (0.2,) * 4).raw(tmp_path / "picture.png")
    with pytest.raises(TypeError, match="images must be uint8"):
        images().scale(torch.zeros(1, 3, 6, 5))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_values_of_the_cpu_without_waiting():
    preparation = images()
    given = torch.from_numpy(IMAGES)
    there = given.cuda()
    preparation.normalise(preparation.scale(there))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        seen = preparation.normalise(preparation.scale(there))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_close(seen.cpu(), preparation.normalise(preparation.scale(given)))
