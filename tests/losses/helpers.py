"""What the loss tests share: batches, losses built with options, and SPEC 1 written out slowly."""

import inspect
import math

import pytest
import torch
import torch.nn.functional as F

import equipoise
from equipoise.catalogue import CATALOGUE, long_tail

IGNORED = -100
UNKNOWN = -1.0
REDUCTIONS = ("mean", "valid_mean", "batch_mean", "sum", "none")
SOFTMAX = [entry for entry in CATALOGUE if entry.link == "softmax"]
SIGMOID = [entry for entry in CATALOGUE if entry.link == "sigmoid"]
REGION = [entry for entry in CATALOGUE if entry.link == "region"]


def each(entries):
    return pytest.mark.parametrize("entry", entries, ids=lambda entry: entry.name)


def make(entry, num_classes, **options):
    """The loss of an entry with options; arguments it cannot do without get an example, schedules epoch 3."""
    kind = getattr(equipoise, entry.name)
    counts = long_tail(num_classes)
    known = {"epochs": 10, "num_classes": num_classes, "counts": counts, "num_samples": 2 * max(counts)}
    wanted = inspect.signature(kind).parameters.values()
    needed = {p.name: known[p.name] for p in wanted if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    loss = kind(**needed, **options)
    if getattr(loss, "scheduled", False):
        loss.set_epoch(3)
    return loss


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def logits_of(*shape, seed=0, dtype=torch.float64, size=1.5, grad=True):
    drawn = size * torch.randn(shape, generator=generator(seed), dtype=torch.float64)
    return drawn.to(dtype).requires_grad_(grad)


def chosen(shape, share, draw):
    """A mask that holds for this share of the places, rounded."""
    count = math.prod(shape)
    return (torch.randperm(count, generator=draw) < round(share * count)).view(shape)


def indices_of(shape, *, seed=0, ignored=0.0, ignore_index=IGNORED, absent=()):
    """Random classes for logits of ``shape``; those in ``absent`` never occur."""
    draw = generator(seed + 1)
    present = torch.tensor([c for c in range(shape[1]) if c not in absent] or [0])
    targets = present[torch.randint(len(present), (shape[0], *shape[2:]), generator=draw)]
    targets[chosen(targets.shape, ignored, draw)] = ignore_index
    return targets


def dense_of(shape, *, seed=0, ignored=0.0):
    """Random distributions; ignored rows have no mass."""
    draw = generator(seed + 1)
    mass = torch.rand(shape, generator=draw, dtype=torch.float64) + 1e-3
    rows = chosen((shape[0], 1, *shape[2:]), ignored, draw)
    return mass / mass.sum(1, keepdim=True) * ~rows


def multilabel_of(shape, *, seed=0, ignored=0.0, soft=False):
    draw = generator(seed + 1)
    targets = torch.rand(shape, generator=draw, dtype=torch.float64)
    targets = targets if soft else (targets < 0.4).double()
    targets[chosen(shape, ignored, draw)] = UNKNOWN
    return targets


def one_hot(targets, num_classes):
    """Distributions, without mass where the target is none of the classes."""
    return torch.stack([targets == c for c in range(num_classes)], dim=1).double()


def batch_of(entry, shape, *, seed=0, ignored=0.0, dtype=torch.float64, size=1.0):
    """Logits and targets as the loss of an entry likes them; LDAM wants cosines."""
    size = size / 10 if entry.name == "LDAMLoss" else size
    logits = logits_of(*shape, seed=seed, dtype=dtype, size=size)
    if entry.link == "sigmoid":
        return logits, multilabel_of(shape, seed=seed, ignored=ignored)
    return logits, indices_of(shape, seed=seed, ignored=ignored)


def value_and_gradient(loss, logits, *args, **options):
    """The loss and its gradient; unreduced elements count differently, so that swapped ones are noticed."""
    logits = logits.detach().requires_grad_()
    value = loss(logits, *args, **options)
    weights = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype, device=value.device).view_as(value)
    (gradient,) = torch.autograd.grad((value * weights).sum() if value.ndim else value, logits)
    return value.detach(), gradient


def check_gradients_at_once(loss, logits, targets):
    """Several gradients of a loss by one backward, in both ways that PyTorch has, against one after the other."""
    z = logits.detach().requires_grad_()
    value = loss(z, targets)
    several = torch.linspace(-1.0, 2.0, 3 * value.numel(), dtype=value.dtype, device=z.device).view(3, *value.shape)

    def backward(upstream, **how):
        return torch.autograd.grad(value, z, upstream, retain_graph=True, **how)[0]

    expected = torch.stack([backward(upstream) for upstream in several])
    tolerance = {"rtol": 1e-4, "atol": 1e-7} if z.dtype is torch.float32 else {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(backward(several, is_grads_batched=True), expected, **tolerance)
    torch.testing.assert_close(torch.vmap(backward)(several), expected, **tolerance)


# ---------------------------------------------------------------------------------------------------------------------
# SPEC 1 in plain differentiable operations in float64. Nothing of the library is used and nothing is done for speed.
# ---------------------------------------------------------------------------------------------------------------------


def per_class(value, like):
    """A number unchanged, (C,) numbers along dimension 1."""
    value = torch.as_tensor(value, dtype=torch.float64)
    return value.view(-1, *(1 for _ in like.shape[2:])) if value.ndim else value


def exponent(gamma, p):
    """A number, one per class, or a table of (bound, gamma) looked up by p."""
    if isinstance(gamma, tuple):
        exponents = torch.full_like(p, gamma[-1][1])
        for bound, value in reversed(gamma[:-1]):
            exponents = torch.where(p.detach() < bound, value, exponents)
        return exponents
    return per_class(gamma, p)


def raised(base, gamma):
    """base ** gamma, with gradient 0 where the base is 0."""
    positive = base > 0
    return torch.where(positive, torch.where(positive, base, 1.0) ** gamma, torch.where(gamma == 0, 1.0, 0.0))


def softmax_reference(
    logits,
    targets,
    *,
    gamma_pos=0.0,
    gamma_neg=None,
    xi=0.0,
    gamma_hc=0.0,
    smoothing=0.0,
    weight=1.0,
    offset=0.0,
    margin=0.0,
    scale=1.0,
    ignore_index=IGNORED,
):
    """Rows of the softmax link; also which count, and the class weight of each index target."""
    z, num_classes = logits.double(), logits.shape[1]
    dense = targets.is_floating_point()
    t = targets.double() if dense else one_hot(torch.where(targets == ignore_index, -1, targets), num_classes)
    valid = t.sum(1) != 0
    z = scale * (z + per_class(offset, z) - t * per_class(margin, z))
    log_p = F.log_softmax(z, 1)
    p = log_p.exp()
    q = torch.einsum("nj...,jk->nk...", p, 1 - torch.eye(num_classes, dtype=torch.float64))
    likely = q < 0.5  # log_softmax has no relative precision near 0
    log_p = torch.where(likely, torch.log1p(-torch.where(likely, q, 0.0)), log_p)
    m_true = xi * (1 + p) ** gamma_hc + (1 - xi) * raised(q, exponent(gamma_pos, p))
    m_other = m_true if gamma_neg is None else xi + (1 - xi) * raised(p, exponent(gamma_neg, p))
    share = smoothing / num_classes
    mass = t * (1 - smoothing + share) * m_true + (1 - t) * share * m_other
    rows = (per_class(weight, z) * mass * -log_p).sum(1)
    row_weight = (t * per_class(weight, z)).sum(1)
    return torch.where(valid, rows, 0.0), valid, row_weight


def softmax_reduced(rows, valid, row_weight, reduction, *, dense, n):
    denominators = {
        "mean": valid.sum() if dense else row_weight.sum(),
        "valid_mean": valid.sum(),
        "batch_mean": n,
        "sum": 1,
    }
    if reduction == "none":
        return rows
    denominator = float(denominators[reduction])
    return rows.sum() / denominator if denominator else rows.sum()


def sigmoid_reference(
    logits,
    targets,
    *,
    gamma_pos=0.0,
    gamma_neg=None,
    xi=0.0,
    gamma_hc=0.0,
    margin=0.0,
    weight=1.0,
    pos_weight=1.0,
    alpha=None,
    offset=0.0,
    neg_scale=1.0,
    element_weight=1.0,
    ignore_value=UNKNOWN,
):
    """Elements of the sigmoid link, and which count."""
    z = logits.double() + per_class(offset, logits)
    t, known = targets.double(), targets != ignore_value
    t = torch.where(known, t, 0.0)
    p, q = z.sigmoid(), (-z).sigmoid()
    positive = (xi * (1 + p) ** gamma_hc + (1 - xi) * raised(q, exponent(gamma_pos, p))) * -F.logsigmoid(z)
    z_neg = neg_scale * z
    above, q_neg = z_neg > 0, (-z_neg).sigmoid()  # above 0 in terms of q, as 1 - p has no relative precision there
    p_m = torch.where(above, (1 - margin) - q_neg, z_neg.sigmoid() - margin).clamp(min=0)
    focus = exponent(gamma_pos, 1 - p_m) if gamma_neg is None else exponent(gamma_neg, p_m)
    log_rest = F.logsigmoid(-z_neg)
    if margin:
        log_rest = torch.where(above, (q_neg + margin).log(), torch.log1p(-torch.where(above, 0.0, p_m)))
    negative = (xi + (1 - xi) * raised(p_m, focus)) * -log_rest / neg_scale
    both = (1.0, 1.0) if alpha is None else (alpha, 1 - alpha)
    elements = t * per_class(pos_weight, z) * both[0] * positive + (1 - t) * both[1] * negative
    elements = elements * per_class(weight, z) * element_weight
    return torch.where(known, elements, 0.0), known


def sigmoid_reduced(elements, known, reduction):
    if reduction == "none":
        return elements
    denominators = {"mean": known.sum(), "valid_mean": known.any(1).sum(), "batch_mean": len(elements), "sum": 1}
    return elements.sum() / max(float(denominators[reduction]), 1.0)


def balanced_bias(counts, num_samples, init_bias=0.05, neg_scale=2.0):
    return [-init_bias / neg_scale * math.log(num_samples / max(count, 1) - 1) for count in counts]
