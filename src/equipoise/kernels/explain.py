"""What will run for a loss and a batch, and why."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from equipoise.kernels.choice import obstacle, wanted

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """Backend and the reason for it; ``print`` gives both as a sentence."""

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def explain(loss: nn.Module, logits: Tensor) -> Explanation:
    """Say which backend ``loss`` will use for ``logits``.

    >>> import torch, equipoise
    >>> print(equipoise.kernels.explain(equipoise.FocalLoss(), torch.zeros(8, 10)))
    reference: the logits are on cpu, and the kernels need a CUDA device
    """
    from equipoise.losses.base import Loss  # they import this package
    from equipoise.losses.objectives import MMCELoss, OHEMLoss
    from equipoise.losses.region import DiceLoss, LovaszSoftmaxLoss, SoftIoULoss, TverskyLoss

    if not isinstance(loss, nn.Module):
        raise TypeError(f"loss must be a module, got {loss!r}; pass the loss itself, such as equipoise.FocalLoss()")
    if not isinstance(loss, Loss):
        return Explanation("reference", f"there is no kernel for {type(loss).__name__}, which PyTorch computes")
    choice, reason = wanted(), obstacle(logits)
    if choice == "reference":
        return Explanation("reference", "equipoise.kernels.use('reference') asks for it")
    if reason is None and (choice == "triton" or logits.is_cuda):
        how = "one fused kernel forward and one backward, or loss and gradient in one where that is faster"
        if isinstance(loss, (OHEMLoss, MMCELoss)):
            how = "fused kernels for the rows, PyTorch for what compares them with each other"
        elif isinstance(loss, (DiceLoss, SoftIoULoss, TverskyLoss)):
            how = "fused kernels for the overlaps of the classes, for the loss of these, and for the gradient"
        elif isinstance(loss, LovaszSoftmaxLoss):
            how = "fused kernels for the errors of the classes, for the loss along their order, and for the gradient; "
            how += "PyTorch's own sort between them"
        asked = (
            "equipoise.kernels.use('triton') asks for it" if choice == "triton" else "the logits are on a CUDA device"
        )
        return Explanation("triton", f"{asked}; {how}")
    if reason is None:  # in Triton's interpreter they would run, for tests
        reason = f"the logits are on {logits.device}, and the kernels need a CUDA device"
    if choice == "triton":
        return Explanation("none", f"equipoise.kernels.use('triton') asks for what cannot run: {reason}")
    return Explanation("reference", reason)
