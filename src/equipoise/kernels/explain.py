"""Report which backend runs for a loss and a batch, and why."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from equipoise.kernels.choice import cpu_serves, obstacle, wanted

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """Backend and the reason for it; ``str`` joins both."""

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def explain(loss: nn.Module, logits: Tensor) -> Explanation:
    """Report which backend ``loss`` will use for ``logits``.

    >>> import torch, equipoise
    >>> print(equipoise.kernels.explain(equipoise.FocalLoss(), torch.zeros(8, 10)))
    cpu: the logits are on cpu, and the kernels need a CUDA device
    """
    if not isinstance(loss, nn.Module):
        raise TypeError(f"loss must be a module, got {loss!r}; pass the loss itself, such as equipoise.FocalLoss()")
    kernels: str | None = getattr(loss, "kernels", None)  # losses import this package, not the other way round
    if not isinstance(kernels, str):
        return Explanation("reference", f"there is no kernel for {type(loss).__name__}, which PyTorch computes")
    choice, reason = wanted(), obstacle(logits)
    if choice == "reference":
        return Explanation("reference", "equipoise.kernels.use('reference') asks for it")
    if reason is None and (choice == "triton" or logits.is_cuda):
        asked = (
            "equipoise.kernels.use('triton') asks for it" if choice == "triton" else "the logits are on a CUDA device"
        )
        return Explanation("triton", f"{asked}; {kernels}")
    if reason is None:  # only Triton's interpreter would run here, for tests
        reason = f"the logits are on {logits.device}, and the kernels need a CUDA device"
    if choice == "triton":
        return Explanation("none", f"equipoise.kernels.use('triton') asks for what cannot run: {reason}")
    return Explanation(
        "cpu" if getattr(loss, "runs_on_cpu_backend", False) and cpu_serves(logits) else "reference", reason
    )
