import pytest
import torch

import equipoise
from tests.examples.running import numbers, run

pytestmark = pytest.mark.slow  # it trains


@pytest.fixture(scope="module")
def example():
    return run("sequence_to_sequence.py")


@pytest.fixture(scope="module")
def model(example):
    source, target = example.make_sentences(100, seed=3)
    return example.train(equipoise.FocalLoss(gamma=1.0, ignore_index=example.PAD), source, target, steps=30)


def test_focal_loss_needs_less_of_a_temperature(example):
    before, temperature, after = numbers(example.printed, "cross-entropy: ")
    focal_before, focal_temperature, _ = numbers(example.printed, "focal, gamma 1: ")
    assert after < before
    assert temperature > 1.15
    assert abs(focal_temperature - 1) < temperature - 1
    assert focal_before < before


def test_calibrated_searches_reach_their_expected_accuracy(example):
    searches = [line.split(": ") for line in example.printed.splitlines() if line.startswith("  beams")]
    cross_entropy = [tuple(float(word.split("%")[0]) for word in line[1].split(", ")) for line in searches[:4]]
    for (right, expected), (right_too, calibrated) in (cross_entropy[:2], cross_entropy[2:]):
        assert right > 20
        assert right_too > 20
        assert abs(calibrated - right_too) < abs(expected - right)


@pytest.mark.parametrize("loss", [equipoise.CrossEntropyLoss, equipoise.FocalLoss])
def test_padding_changes_nothing(example, loss):
    loss = loss(ignore_index=example.PAD)
    _, target = example.make_sentences(8, seed=4)
    longer = torch.cat([target, torch.full((8, 5), example.PAD)], 1)
    logits = torch.randn(8, len(example.GERMAN), longer.shape[1], requires_grad=True)
    (grad,) = torch.autograd.grad(loss(logits, longer), logits)
    torch.testing.assert_close(loss(logits, longer), loss(logits[:, :, : target.shape[1]], target))
    assert not grad.transpose(1, 2)[longer == example.PAD].any()
    assert grad.transpose(1, 2)[longer != example.PAD].any(1).all()


@pytest.mark.parametrize("beams", [1, 4])
def test_a_search_states_the_probability_that_the_model_gives_its_sentence(example, model, beams):
    source, _ = example.make_sentences(40, seed=5)
    actual, stated = example.search(model, source, beams=beams, temperature=1.3)
    with torch.no_grad():
        log_probs = (model(source, actual[:, :-1]) / 1.3).log_softmax(1)
    own = log_probs.gather(1, actual[:, None, 1:]).squeeze(1).masked_fill(actual[:, 1:] == example.PAD, 0.0)
    torch.testing.assert_close(stated, own.sum(1).exp())


def test_one_beam_is_greedy(example, model):
    source, _ = example.make_sentences(20, seed=6)
    actual, _ = example.search(model, source, beams=1, temperature=1.0)
    with torch.no_grad():
        likeliest = model(source, actual[:, :-1]).argmax(1)
    running = actual[:, 1:] != example.PAD
    assert (likeliest == actual[:, 1:])[running].all()


def test_german(example):
    assert example.english(243) == ["two", "hundred", "forty", "three"]
    assert example.german(243, more_und=False) == ["zwei", "hundert", "drei", "und", "vierzig"]
    assert example.german(1016, more_und=True) == ["ein", "tausend", "und", "sechzehn"]
    assert example.german(20, more_und=True) == ["zwanzig"]
    longest = max(len(example.german(number, more_und=True)) for number in range(1, 10_000))
    assert longest + 2 == example.LONGEST
