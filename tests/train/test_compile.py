"""Compiled training steps give the same result, also in a process that has compiled another model before."""

from __future__ import annotations

import pytest
import torch

from equipoise.train.run import run
from equipoise.train.spec import RunSpec


def losses(folder, **settings):
    spec = RunSpec(data="digits-lt", model="mlp", epochs=2, logger="none", **settings)
    return [row.train["loss"] for row in run(spec, folder).history()]


@pytest.mark.parametrize("mode", ["none", "reduce-overhead"])
def test_the_mode_is_that_of_the_settings(tmp_path, monkeypatch, mode):
    asked = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: asked.append(options))
    losses(tmp_path / "run", compile=mode)
    assert asked == ([] if mode == "none" else [{"mode": mode}])


@pytest.mark.slow
def test_a_compiled_step_is_the_same_step(tmp_path):
    for seed in (0, 1):
        plain = losses(tmp_path / f"plain-{seed}", seed=seed)
        assert losses(tmp_path / f"compiled-{seed}", seed=seed, compile="default") == pytest.approx(plain, rel=1e-4)
