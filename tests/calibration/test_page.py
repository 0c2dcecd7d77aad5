"""The documentation page on calibration: its tables are the recorded ones, and they support its claims."""

import json
from pathlib import Path

import pytest

from experiments import calibration as experiment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "calibration.md").read_text()
RECORD = json.loads(experiment.RESULTS.read_text())
NETWORKS = RECORD["networks"]


def test_the_tables_are_the_recorded_ones():
    assert experiment.fill(PAGE, experiment.write_tables(RECORD)) == PAGE
    assert set(experiment.write_tables(RECORD)) == {"networks", "nll", "ece", "accuracy", "shift", "labels"}


def test_ten_networks():
    assert len(NETWORKS) == 10


def test_confidences_above_one():
    above = {name: each["given"]["above_one"] for name, each in NETWORKS.items() if each["given"]["above_one"]}
    assert above == {"cleanlab_imdb_test_set": 2744}
    given = NETWORKS["cleanlab_imdb_test_set"]["given"]
    assert (round(given["ece"], 4), round(given["ece_up_to_one"], 4)) == (0.0404, 0.0399)
    assert "2,744 confidences are above 1" in PAGE
    assert "gives 0.0399" in PAGE


@pytest.mark.parametrize("name", NETWORKS)
def test_temperature_lowers_the_likelihood_loss_on_both_halves(name):
    each = NETWORKS[name]
    for before, after in zip(each["before"], each["after"]["temperature"], strict=True):
        assert after["nll"] < before["nll"]
        assert after["accuracy"] == before["accuracy"]


def test_claims_about_other_methods():
    def better(method, than):
        means = {
            key: [experiment.mean(each["after"][key], "nll") for each in NETWORKS.values()] for key in (method, than)
        }
        return sum(a < b for a, b in zip(means[method], means[than], strict=True))

    assert better("vector", "temperature") >= 8
    assert better("dirichlet", "temperature") >= 8
    news = {key: experiment.mean(each, "nll") for key, each in NETWORKS["cleanlab_20news_test_set"]["after"].items()}
    assert news["isotonic"] < 0.6 * news["temperature"]
    assert news["temperature-ece"] > 1.2 * news["temperature"]
    hundred = [each for each in NETWORKS.values() if each["classes"] == 100]
    assert len(hundred) == 3
    for each in hundred:
        assert experiment.mean(each["after"]["isotonic"], "nll") > experiment.mean(each["after"]["temperature"], "nll")


def test_claims_about_labels():
    for losses in RECORD["labels"].values():
        for each in losses.values():
            assert sum(each["f1_seen"]) > sum(each["f1_expected"])
        asl = losses["asl"]
        assert sum(asl["nll_biases"]) < 0.95 * sum(asl["nll_temperatures"]) < 0.95 * sum(asl["nll"])


def test_an_estimated_prior_is_nearly_as_good_as_a_known_one():
    gain = {"estimated": [], "known": []}
    for each in RECORD["shift"].values():
        for kind, values in gain.items():
            values.append(experiment.mean(each["vector"], "nll") - experiment.mean(each[kind], "nll"))
    assert min(gain["estimated"]) > 0
    assert sum(gain["estimated"]) > 0.6 * sum(gain["known"])
