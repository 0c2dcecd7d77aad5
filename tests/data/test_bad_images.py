"""Image files that cannot be decoded: detected when data are opened, listed or skipped; settings are checked once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from equipoise.comparison.plan import surveyed_entries
from equipoise.comparison.spec import CompareSpec
from equipoise.data import DataError, open_data
from equipoise.data.files import check_image, read_image
from equipoise.train import builders
from equipoise.train.spec import RunSpec
from tests.data.making import class_folders, mask, picture, rotten

FORMATS = ("png", "jpg", "gif", "bmp", "tif", "webp", "ppm")


def cut(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 2 // 3])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    class_folders(tmp_path / "photos", 10, "jpg")
    return tmp_path / "photos"


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_whole_images_pass_and_others_do_not(tmp_path: Path, ending: str, mode: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 30, 3) if mode == "RGB" else (40, 30), np.uint8)
    file = tmp_path / f"a.{ending}"
    Image.fromarray(noise).save(file)
    check_image(file)
    for damage in (cut, lambda path: path.write_bytes(b""), lambda path: path.write_text("<html>404</html>")):
        Image.fromarray(noise).save(file)
        damage(file)
        with pytest.raises(DataError):
            read_image(file, None)
        with pytest.raises(DataError):
            check_image(file)


@pytest.mark.parametrize("mode", ["1", "P", "LA", "RGBA", "CMYK", "I;16", "YCbCr"])
def test_modes_that_are_read_pass(tmp_path: Path, mode: str) -> None:
    file = tmp_path / ("a.tif" if mode in ("CMYK", "YCbCr") else "a.png")
    Image.new(mode, (8, 8)).save(file)
    assert read_image(file, None).shape == (3, 8, 8)
    check_image(file)


def test_images_of_32_bits_do_not_pass(tmp_path: Path) -> None:
    Image.new("F", (8, 8)).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match="8 or 16 bits"):
        check_image(tmp_path / "a.tif")


def test_all_are_listed(photos: Path) -> None:
    for name in ("cat/00.jpg", "dog/03.jpg", "dog/04.jpg"):
        cut(photos / name)
    with pytest.raises(DataError) as error:
        open_data(photos)
    message = str(error.value)
    assert "3 of 30" in message
    assert all(name in message for name in ("cat/00.jpg", "dog/03.jpg", "dog/04.jpg", "--skip-bad-images"))
    assert "\n" not in message


def test_skipped_with_a_note(photos: Path) -> None:
    whole = open_data(photos)
    for name in ("cat/00.jpg", "dog/03.jpg"):
        cut(photos / name)
    data = open_data(photos, skip_bad_images=True)
    assert sum(map(len, (data.train, data.val, data.test))) == sum(map(len, (whole.train, whole.val, whole.test))) - 2
    (note,) = [note for note in data.notes if "cat/00.jpg" in note]
    assert "2 of 30" in note
    assert "dog/03.jpg" in note
    for split in (data.train, data.val, data.test):
        split.as_arrays()


def test_no_image_is_left(photos: Path) -> None:
    for file in photos.rglob("*.jpg"):
        file.write_bytes(b"")
    with pytest.raises(DataError, match="train images that can be decoded, found none"):
        open_data(photos, skip_bad_images=True)


def test_masks_are_skipped_with_their_images(tmp_path: Path) -> None:
    for i in range(10):
        picture(tmp_path / "images" / f"{i}.png", size=(3, 2))
        mask(tmp_path / "masks" / f"{i}.png", [[0, 0, 1], [0, 1, 1]])
    cut(tmp_path / "images" / "4.png")
    data = open_data(tmp_path, skip_bad_images=True)
    stems = [Path(path).stem for split in (data.train, data.val, data.test) for path in split.masks.paths]
    assert sorted(stems) == [str(i) for i in range(10) if i != 4]


def test_bad_masks_are_listed_or_skipped_with_their_images(tmp_path: Path) -> None:
    for i in range(12):
        picture(tmp_path / "images" / f"{i}.png", size=(3, 2))
        mask(tmp_path / "masks" / f"{i}.png", [[0, 0, 1], [0, 1, 1]])
    cut(tmp_path / "images" / "4.png")
    cut(tmp_path / "masks" / "7.png")
    (tmp_path / "masks" / "9.png").write_bytes(b"")
    bad = ("images/4.png", "masks/7.png", "masks/9.png")
    with pytest.raises(DataError) as error:
        open_data(tmp_path)
    assert "3 of 12" in str(error.value)
    assert all(name in str(error.value) for name in (*bad, "--skip-bad-images"))
    with pytest.raises(DataError, match=r"7\.png"):  # it is read in any case
        open_data(tmp_path, check_images=False)
    data = open_data(tmp_path, skip_bad_images=True)
    stems = [Path(path).stem for split in (data.train, data.val, data.test) for path in split.masks.paths]
    assert sorted(stems, key=int) == [str(i) for i in range(12) if i not in (4, 7, 9)]
    assert sum("3 of 12" in note for note in data.notes) == 1
    for i in range(12):
        cut(tmp_path / "masks" / f"{i}.png")
    with pytest.raises(DataError, match="train masks that can be decoded"):
        open_data(tmp_path, skip_bad_images=True)


def test_open_set(photos: Path, tmp_path: Path) -> None:
    class_folders(tmp_path / "others", 2, "jpg")
    cut(tmp_path / "others" / "emu" / "01.jpg")
    settings: dict[str, Any] = {"data": str(photos), "open_set": str(tmp_path / "others")}
    with pytest.raises(DataError, match=r"1 of 6 that cannot be: emu/01\.jpg"):
        builders.opened(RunSpec(**settings))
    data, unknown = builders.opened(RunSpec(**settings, skip_bad_images=True))
    assert unknown is not None
    assert len(unknown) == 5
    assert any("emu/01.jpg" in note for note in data.notes)


def test_what_was_checked_is_not_checked_again(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a comparison open the same data many times."""
    looked = []
    monkeypatch.setattr("equipoise.data.files.check_image", looked.append)
    builders.opened(RunSpec(data=str(photos)), check_images=False)
    assert not looked
    builders.opened(RunSpec(data=str(photos)))
    assert len(looked) == 30


def test_undecodable_images_are_named(photos: Path) -> None:
    rotten(photos / "cat" / "00.jpg")
    data = open_data(photos)
    files = np.concatenate([split.paths for split in (data.train, data.val, data.test)])
    assert any(path.endswith("cat/00.jpg") for path in files)
    with pytest.raises(DataError, match=r"cat/00\.jpg: the file must be an image that can be decoded"):
        read_image(photos / "cat" / "00.jpg", None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"monitor": "acc"}, "--monitor must be one of"),
        ({"logger": "paper"}, "--logger must be none"),
        ({"logger": "nowhere:Logger"}, "--logger must be none"),
        ({"precision": "17"}, "--precision must suit"),
        ({"accelerator": "abacus"}, "--accelerator"),
        ({"model": "mlp", "model_options": {"hiden": [4]}}, "--model mlp"),
        ({"model": "unet"}, "--model unet"),
        ({"prior_bias": True}, "--prior-bias"),
        ({"word_vectors": "glove.txt"}, "--word-vectors is for texts, got images"),
    ],
)
def test_settings_of_a_comparison_are_checked_before_any_run(settings: dict[str, Any], words: str) -> None:
    spec = CompareSpec.check({"data": "digits-lt", "losses": "ce", **settings})
    with pytest.raises(ValueError, match=words):
        surveyed_entries(spec)


def test_checks_of_a_comparison_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    surveyed_entries(CompareSpec.check({"data": "digits-lt", "losses": "ce"}))
    assert not list(tmp_path.iterdir())
