"""What pages read from the folders of a comparison."""

import base64
import io
import shlex

import numpy as np
import pytest
from PIL import Image

from equipoise.cli.settings import given_settings
from equipoise.comparison.command import command_of
from equipoise.comparison.spec import CompareSpec
from equipoise.plotting.theme import INK
from equipoise.report.examples import class_colours, examples, stored_array
from equipoise.report.runs import compared_candidates, compared_losses
from equipoise.train.folder import plain
from tests.report.comparisons import read_verdict, write_comparison


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_comparison(tmp_path_factory.mktemp("compared") / "multiclass")


@pytest.fixture(scope="module")
def losses(folder):
    return compared_losses(folder, read_verdict(folder))


@pytest.fixture
def maps(tmp_path):
    folder = write_comparison(tmp_path / "maps", "segmentation", seeds=1)
    verdict = read_verdict(folder)
    return compared_losses(folder, verdict), verdict.data


def test_losses_have_the_runs_of_what_was_chosen(losses):
    assert [loss.name for loss in losses] == ["ce", "focal:gamma=1,3", "recall"]
    assert [run.path.name for run in losses[1].runs] == [f"focal-gamma=3-{seed}" for seed in range(3)]
    assert [loss.baseline for loss in losses] == [True, False, False]
    assert losses[0].stroke.colour == INK
    assert len({loss.stroke for loss in losses}) == 3


def test_every_candidate_has_its_runs(folder):
    sweeps = compared_candidates(folder, read_verdict(folder))
    assert list(sweeps) == ["focal:gamma=1,3"]
    candidates = sweeps["focal:gamma=1,3"]
    assert [one.name for one in candidates] == ["focal:gamma=1", "focal:gamma=3"]
    for one in candidates:
        stem = one.name.replace(":", "-")
        assert [run.path.name for run in one.runs] == [f"{stem}-{seed}" for seed in range(3)]
    assert candidates[0].stroke != candidates[1].stroke


def test_a_candidate_without_finished_runs_has_no_line(tmp_path):
    folder = write_comparison(tmp_path / "c", losses=("ce", "focal:gamma=1,2,3"), seeds=1)
    verdict = read_verdict(folder)
    (folder.path / "runs" / "focal-gamma=2-0").rename(folder.path / "moved")
    (candidates,) = compared_candidates(folder, verdict).values()
    assert [one.name for one in candidates] == ["focal:gamma=1", "focal:gamma=3"]
    (folder.path / "runs" / "focal-gamma=1-0").rename(folder.path / "moved too")
    assert compared_candidates(folder, verdict) == {}


def test_a_series_is_the_mean_of_the_seeds_and_their_range(losses):
    series = losses[2].series("val", "nll")
    rows = np.array([[row.val["nll"] for row in run.history()] for run in losses[2].runs])
    assert rows.shape == (3, 4)
    np.testing.assert_allclose(series.mean, rows.mean(0))
    np.testing.assert_allclose(series.low, rows.min(0))
    np.testing.assert_allclose(series.high, rows.max(0))
    assert series.epochs.tolist() == [1, 2, 3, 4]
    assert losses[2].series("val", "nothing") is None
    assert losses[2].series("train", "recall_weights") is None  # a list is no number


def test_numbers_of_classes_over_time(losses):
    value = losses[0].by_class("train", "recall_weights")
    rows = np.array([[row.train["recall_weights"] for row in run.history()] for run in losses[0].runs])
    np.testing.assert_allclose(value, rows.mean(0))
    assert losses[0].by_class("train", "loss") is None


def test_reliability_of_all_seeds_is_that_of_all_their_samples(losses):
    curve = losses[0].reliability("all").before
    tests = [run.results.test.reliability["all"].before for run in losses[0].runs]
    count = sum(test.total for test in tests)
    right = sum(n * (a or 0.0) for test in tests for n, a in zip(test.count, test.accuracy, strict=True))
    assert curve.total == count
    np.testing.assert_allclose(np.dot(curve.count, curve.accuracy) / count, right / count)
    assert losses[0].reliability("few").after is not None
    assert losses[0].reliability("nothing") is None


# ------------------------------------------------------------------------------------------------------------ examples


def pixels(photo):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(photo.source.partition(",")[2]))).convert("RGB"))


def test_label_maps_have_the_colours_of_their_classes(maps):
    losses, data = maps
    grid, keys = examples(losses, data.class_names, data.train_counts)
    assert grid.head == ["image", "truth", "ce", "recall"]
    assert [len(row) for row in grid.rows] == [4, 4, 4]
    colours = class_colours(data.train_counts)
    with (
        np.load(losses[1].runs[0].predictions("test")) as saved,
        np.load(losses[0].runs[0].path / "examples.npz") as kept,
    ):
        for number, index in enumerate(kept["indices"]):
            truth = saved["targets"][index]
            actual = saved["logits"][index].argmax(0)
            expected = np.where((truth >= 0)[..., None], colours[actual], 0)
            np.testing.assert_array_equal(pixels(grid.rows[number][3]), expected)
            right = np.where((truth >= 0)[..., None], colours[truth.clip(0)], 0)
            np.testing.assert_array_equal(pixels(grid.rows[number][1]), right)
            np.testing.assert_array_equal(pixels(grid.rows[number][0]), kept["images"][number].transpose(1, 2, 0))
            share = (actual == truth)[truth >= 0].mean()
            assert grid.rows[number][3].caption == f"{100 * share:.1f} % right"
    assert [key.name for key in keys] == [*data.class_names, "ignored"]
    assert keys[1].colour == "#" + bytes(colours[1]).hex()


def test_without_kept_images_there_are_only_maps(maps):
    losses, data = maps
    (losses[0].runs[0].path / "examples.npz").unlink()
    grid, _ = examples(losses, data.class_names, data.train_counts)
    assert grid.head == ["truth", "ce", "recall"]
    assert len(grid.rows) == 6


def test_without_predictions_there_are_no_examples(maps):
    losses, data = maps
    losses[1].runs[0].predictions("test").unlink()
    assert examples(losses, data.class_names, data.train_counts) is None


@pytest.mark.parametrize("count", [2, 11, 300])
def test_colours_differ(count):
    colours = class_colours(list(range(count)))
    assert colours.shape == (count, 3)
    assert len({tuple(colour) for colour in colours.tolist()}) == count
    assert len(set(colours[-1].tolist())) <= 3
    assert np.ptp(colours[count - 1].astype(int)) < 20  # the most common one is grey


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_stored_arrays_are_read_unchanged(tmp_path, write):
    arrays = {
        "logits": np.random.default_rng(0).normal(size=(5, 3, 4, 2)).astype(np.float16),
        "targets": np.asfortranarray(np.arange(40).reshape(5, 8)),
    }
    write(tmp_path / "saved.npz", **arrays)
    for name, array in arrays.items():
        actual = stored_array(tmp_path / "saved.npz", name)
        np.testing.assert_array_equal(actual, array)
        assert isinstance(actual, np.memmap) == (write is np.savez)


# ------------------------------------------------------------------------------------------------------------- origins


@pytest.mark.parametrize(
    "settings",
    [
        {"data": "digits-lt"},
        {"data": "my photos", "losses": "ce focal:gamma=1,2,3 ldam:weight=drw", "seeds": "4,7", "baseline": "ce"},
        {"data": "x", "seeds": "7,", "image_size": "240x320", "class_names": "a b,c", "cache": True, "lr": 0.03},
        {"data": "x", "model_options": {"hidden": [64, 8], "width": 16, "kind": "a"}, "milestones": "0.5,0.7"},
    ],
)
def test_the_command_gives_the_settings_again(settings):
    spec = CompareSpec.check(settings)
    _, _, *words = shlex.split(command_of(plain(spec.model_dump()), "out"))
    given = {"model_options": []}
    while words:
        flag = words.pop(0).removeprefix("--").replace("-", "_")
        if flag.startswith("no_"):
            given[flag.removeprefix("no_")] = False
        elif not words or words[0].startswith("--"):
            given[flag] = True
        elif flag == "model_options":
            given[flag].append(words.pop(0))
        else:
            given[flag] = words.pop(0)
    assert given.pop("out") == "out"
    assert CompareSpec.check(given_settings(given)) == spec
