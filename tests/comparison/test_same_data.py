"""Data are the same however their path is written; differences are reported with both values."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.cli.compare import _name
from equipoise.comparison.compare import _entries_so_far, _write_plan
from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.plan import entries_of
from equipoise.comparison.spec import CompareSpec
from equipoise.train.folder import RunFolder
from equipoise.train.run import _take_over
from equipoise.train.spec import RunSpec

SPELLINGS = ("photos", "photos/", "./photos", "photos/.", "../here/photos", "{here}/photos", "link")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    (folder / "photos").mkdir(parents=True)
    (folder / "others").mkdir()
    (folder / "link").symlink_to("photos")
    monkeypatch.chdir(folder)
    return folder


def compared(data: str, **settings: object) -> CompareSpec:
    return CompareSpec.model_validate({"data": data, "losses": ["ce"], "seeds": 1, "epochs": 2} | settings)


@pytest.fixture
def comparison(here: Path) -> ComparisonFolder:
    spec, folder = compared("photos"), ComparisonFolder(here / "comparisons" / "photos")
    folder.path.mkdir(parents=True)
    _write_plan(folder, spec, entries_of(["ce"]))
    return folder


@pytest.mark.parametrize("data", SPELLINGS)
def test_comparisons_resume(here: Path, comparison: ComparisonFolder, data: str) -> None:
    spec = compared(data.format(here=here))
    assert _entries_so_far(comparison, spec) == comparison.entries
    more = compared(data.format(here=here), seeds=2)
    _write_plan(comparison, more, comparison.entries)
    assert len(comparison.runs) == 2


@pytest.mark.parametrize("data", SPELLINGS)
def test_runs_resume(here: Path, data: str) -> None:
    folder = RunFolder(here / "run")
    _take_over(folder, RunSpec(data="photos", image_root="photos"), restart=False, say=print)
    _take_over(
        folder, RunSpec(data=data.format(here=here), image_root=data.format(here=here)), restart=False, say=print
    )


def test_different_data_and_settings_are_reported_with_both_values(here: Path, comparison: ComparisonFolder) -> None:
    with pytest.raises(
        ValueError, match=r"holds a comparison with data=photos \(this one has others\), lr=None \(this"
    ):
        _entries_so_far(comparison, compared("others", lr=0.5))
    _take_over(RunFolder(here / "run"), RunSpec(data="photos", lr=0.1), restart=False, say=print)
    with pytest.raises(ValueError, match=r"holds a run with lr=0.1 \(this one has 0.01\); choose another --out"):
        _take_over(RunFolder(here / "run"), RunSpec(data="photos", lr=0.01), restart=False, say=print)


def test_embedded_data_are_not_a_folder(here: Path) -> None:
    (here / "digits-lt").mkdir()
    assert RunSpec(data="digits-lt").differing({"data": "./digits-lt"})
    assert not RunSpec(data="./digits-lt").differing({"data": "digits-lt/"})


def test_settings_that_were_not_recorded_had_their_default() -> None:
    assert not RunSpec(data="digits-lt").differing({"data": "digits-lt"})
    assert set(RunSpec(data="digits-lt", ema=0.9).differing({"data": "digits-lt"})) == {"ema"}


@pytest.mark.parametrize("data", [*SPELLINGS[:-1], "others/../photos"])
def test_default_folder(here: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    assert _name(compared(data.format(here=here))) == "photos"
    monkeypatch.chdir("photos")
    assert _name(compared(".")) == "photos"
    assert _name(compared("..")) == "here"
    assert _name(compared("../photos/..")) == "here"
