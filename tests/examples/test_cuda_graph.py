import pytest
import torch

from equipoise.losses import current_settings
from tests.examples.running import numbers, run

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def example():
    return run("cuda_graph.py", "--epochs", 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a CUDA device")
def test_without_a_device_it_says_so(example):
    assert example.printed == "a CUDA graph needs a CUDA device, and this machine has none\n"


def test_the_step_learns_and_moves_schedule_and_statistics(example):
    training, losses, seconds = example.train("cpu", 8, captured=False)
    assert sum(losses[-8:]) < 0.5 * sum(losses[:8])
    assert seconds > 0
    settings = current_settings(training.loss)
    assert settings["gamma"] == pytest.approx(2.0 * (1 - 7 / 8))
    assert settings["recall_weights"][0] < settings["recall_weights"][9]


@pytest.mark.gpu
@needs_cuda
def test_the_captured_step_trains_as_the_eager_one(example):
    eager, graph = (example.train("cuda", 4, captured) for captured in (False, True))
    torch.testing.assert_close(graph[1], eager[1], rtol=1e-4, atol=1e-5)
    for ours, theirs in ((graph[0].model, eager[0].model), (graph[0].loss, eager[0].loss)):
        for name, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    assert current_settings(graph[0].loss)["gamma"] == pytest.approx(0.5)  # moved between the replays
    assert numbers(example.printed, "captured")[0] < numbers(example.printed, "eager")[0]
