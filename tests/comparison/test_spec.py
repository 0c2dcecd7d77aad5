"""Settings of a comparison: losses as a line or a list, seeds as a number or a list, all mistakes together."""

import re
from pathlib import Path

import pytest

from equipoise.comparison.spec import GROUPS, CompareSpec
from equipoise.expressions import list_losses
from equipoise.train.loss_text import WEIGHTS
from equipoise.train.spec import RunSpec, SharedSpec, SpecError, read_spec


def test_the_settings_are_those_of_a_run_but_what_differs():
    assert RunSpec.model_fields.keys() - CompareSpec.model_fields.keys() == {"loss", "method", "stage_one", "seed"}
    assert CompareSpec.model_fields.keys() - RunSpec.model_fields.keys() == {"losses", "methods", "seeds", "baseline"}
    assert SharedSpec.model_fields.keys() == RunSpec.model_fields.keys() & CompareSpec.model_fields.keys()
    for name, field in CompareSpec.model_fields.items():
        assert field.description, name
        assert field.json_schema_extra["group"] in GROUPS, name


def test_the_page_lists_what_a_comparison_adds():
    page = (Path(__file__).parents[2] / "docs" / "comparison.md").read_text(encoding="utf-8")
    for name in CompareSpec.model_fields.keys() - SharedSpec.model_fields.keys():
        assert re.search(rf"\| `{name}` \| .*\| {re.escape(CompareSpec.model_fields[name].description)} \|", page), name


def test_flags_and_yaml_give_the_same_settings(tmp_path):
    file = tmp_path / "compare.yaml"
    file.write_text(
        "data: digits-lt\nlosses: [ce, 'focal:gamma=1,2', ce+0.5*mmce]\nseeds: 2\nbaseline: ce\nepochs: 3\n"
    )
    flags = {
        "data": "digits-lt",
        "losses": "ce focal:gamma=1,2 ce + 0.5*mmce",
        "seeds": "0,1",
        "baseline": "ce",
        "epochs": "3",
    }
    assert CompareSpec.check(read_spec(file)) == CompareSpec.check(flags)


@pytest.mark.parametrize(
    ("line", "losses"),
    [
        ("ce", ["ce"]),
        ("ce,focal", ["ce", "focal"]),
        (" ce ,  focal ", ["ce", "focal"]),
        ("focal:gamma=1,2,3", ["focal:gamma=1,2,3"]),
        ("focal:gamma=1,2,3,ce", ["focal:gamma=1,2,3", "ce"]),
        (
            "focal:gamma=1,2:label_smoothing=0,0.1,ldam:weight=drw",
            ["focal:gamma=1,2:label_smoothing=0,0.1", "ldam:weight=drw"],
        ),
        ("focal:gamma=linear(5,1),cosine(5,1) ce", ["focal:gamma=linear(5,1),cosine(5,1)", "ce"]),
        ("ce + 0.5*dice, ce:label_smoothing=0.1,0.5*ce+dice", ["ce+0.5*dice", "ce:label_smoothing=0.1", "0.5*ce+dice"]),
        ("1,2*ce+dice", ["1", "2*ce+dice"]),
        ("ldam:weight=inverse,drw(0.9),balanced-softmax", ["ldam:weight=inverse,drw(0.9)", "balanced-softmax"]),
    ],
)
def test_a_line_of_losses(line, losses):
    assert list_losses(line) == losses


def test_every_rule_for_weights_may_stand_in_a_list():
    rules = ",".join(WEIGHTS)
    assert list_losses(f"ce:weight={rules} focal") == [f"ce:weight={rules}", "focal"]


@pytest.mark.parametrize(
    ("given", "seeds"),
    [(2, (0, 1)), ("2", (0, 1)), ([4, 7], (4, 7)), ("4,7", (4, 7)), ("7,", (7,)), ([7], (7,)), (1, (0,))],
)
def test_seeds(given, seeds):
    assert CompareSpec(data="x", seeds=given).seeds == seeds


def test_defaults_are_three_seeds_and_no_losses():
    spec = CompareSpec(data="x")
    assert (spec.losses, spec.seeds, spec.baseline) == (None, (0, 1, 2), None)


def test_all_mistakes_are_named_together():
    with pytest.raises(SpecError) as error:
        CompareSpec.check(
            {
                "losses": "ce focl focal:gama=3",
                "seeds": [0, -1],
                "loss": "ce",
                "seed": 3,
                "epochs": 0,
                "devices": 2,
                "nodes": 2,
            },
            where="compare.yaml",
        )
    text = str(error.value)
    assert text.startswith("compare.yaml: 9 mistakes")
    assert "losses.1: name must be a loss of the catalogue, got 'focl'; did you mean 'focal'?" in text
    assert "losses.2: FocalLoss must get options that it knows, got 'gama'; did you mean 'gamma'?" in text
    assert "seeds.1: input should be greater than or equal to 0, got -1" in text
    assert "loss: there is no such setting; did you mean 'losses'?" in text
    assert "seed: there is no such setting; did you mean 'seeds'?" in text
    assert "data: it must be given, as --data or as a line 'data: ...' of a file of settings" in text
    assert "devices: every run of a comparison uses one device, got 2" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"losses": "focal ce FocalLoss"}, "every loss must be given once, got focal twice"),
        ({"losses": "focal:gamma=1,2 fl:gamma=1,2"}, "got focal(gamma=[1, 2]) twice"),
        ({"losses": ""}, "there must be at least one loss, got none"),
        ({"losses": []}, "there must be at least one loss, got none"),
        ({"losses": [3]}, "valid string, got 3"),
        ({"losses": "auto"}, "name must be a loss of the catalogue, got 'auto'"),
        ({"seeds": 0}, "there must be at least one seed, got 0"),
        ({"seeds": []}, "there must be at least one seed, got none"),
        ({"seeds": "two"}, "a number of seeds or a list of them, got 'two'; for example 3, or 0,1,2"),
        ({"seeds": [1, 2, 1]}, "every seed must be given once, got 1 twice"),
        ({"seeds": [2**32]}, "less than 4294967296"),
        ({"losses": "ce focal", "baseline": "recall"}, "one of ce, focal, got recall"),
    ],
)
def test_mistakes(settings, message):
    with pytest.raises(SpecError) as error:
        CompareSpec.check({"data": "x", **settings})
    assert len(error.value.mistakes) == 1, error.value
    assert message in str(error.value)


def test_entries_with_a_candidate_in_common_are_different_losses():
    spec = CompareSpec(data="x", losses=["focal:gamma=3", "focal:gamma=1,2,3"], baseline="focal:gamma=3")
    assert spec.losses == ("focal(gamma=3)", "focal(gamma=[1, 2, 3])")
    assert spec.baseline == "focal(gamma=3)"
