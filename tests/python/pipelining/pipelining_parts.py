"""The model of these tests: parts 0 .. n-1, an embedding first and a head last, cut into stages anywhere.

A part's weights depend on its index alone, and its parameters are called ``"<index>.<name>"`` in every stage, so that
gradients of a pipeline and of the whole model in one process have the same names.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

HIDDEN, VOCABULARY, SEQUENCE = 16, 24, 5


class Layer(nn.Module):
    """A pre-norm MLP. ``twice``: a weight has two users on one path, which W has to sum."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.twice = twice
        self.norm = nn.LayerNorm(HIDDEN)
        self.inner = nn.Linear(HIDDEN, HIDDEN)
        self.outer = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.inner(self.norm(x)))
        return x + self.outer(torch.tanh(self.inner(y)) if self.twice else y)


class Parts(nn.ModuleDict):
    """Consecutive parts of the model. ``scale`` is a keyword argument that every stage may get."""

    reentrant = False  # Of the recompute.

    def __init__(self, indices: Sequence[int], count: int, dtype: torch.dtype, recompute: bool = False,
                 twice: bool = True) -> None:
        super().__init__({str(index): build_part(index, count, dtype, twice) for index in indices})
        self.recompute = recompute

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        for part in self.values():
            recompute = self.recompute and x.is_floating_point()
            x = checkpoint(part, x, use_reentrant=self.reentrant) if recompute else part(x)
        return x if scale is None else x * scale


def build_part(index: int, count: int, dtype: torch.dtype, twice: bool = True) -> nn.Module:
    torch.manual_seed(index)
    if index == 0:
        return nn.Embedding(VOCABULARY, HIDDEN, dtype=dtype)
    if index == count - 1:
        return nn.Linear(HIDDEN, VOCABULARY, bias=False).to(dtype)
    return Layer(twice).to(dtype)


def indices_of(stage: int, num_stages: int, count: int) -> range:
    return range(*(round(s * count / num_stages) for s in (stage, stage + 1)))


def build_stage(stage: int, num_stages: int, count: int, dtype: torch.dtype, recompute: bool = False,
                twice: bool = True) -> Parts:
    return Parts(indices_of(stage, num_stages, count), count, dtype, recompute, twice)


def batch_of(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens and labels, ``[rows, SEQUENCE]``."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, SEQUENCE)
    return (torch.randint(VOCABULARY, shape, generator=generator),
            torch.randint(VOCABULARY, shape, generator=generator))


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def whole_model(
    tokens: Tensor, labels: Tensor, count: int, micro_batches: int, dtype: torch.dtype, mean: bool = True,
    tied: bool = False, autocast: bool = False, twice: bool = True
) -> tuple[list[float], dict[str, Tensor], Tensor]:
    """The oracle: plain autograd in one process, micro-batch by micro-batch. Losses, gradients by name, outputs."""
    model = Parts(range(count), count, dtype, twice=twice)
    if tied:
        model[str(count - 1)].weight = model["0"].weight
    losses, outputs = [], []
    for x, y in zip(tokens.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs.append(model(x))
            loss = loss_of(outputs[-1], y)
        (loss / micro_batches if mean else loss).backward()
        losses.append(loss.item())
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return losses, gradients, torch.cat(outputs).detach()


def whole_model_cast(
    tokens: Tensor, labels: Tensor, count: int, micro_batches: int, param_dtype: torch.dtype, twice: bool = True
) -> tuple[list[float], dict[str, Tensor]]:
    """The oracle of FSDP2's policies, without FSDP2: parameters are cast to ``param_dtype``, and all compute with them;
    their gradients are kept and summed in float32. Losses, gradients by name."""
    model = Parts(range(count), count, torch.float32, twice=twice).to(param_dtype)
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32
    losses = []
    for x, y in zip(tokens.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
        loss = loss_of(model(x), y)
        (loss / micro_batches).backward()
        losses.append(loss.item())
    return losses, {name: p.grad for name, p in model.named_parameters()}


def distance(given: Tensor, wanted: Tensor) -> float:
    """Norm-wise, |g - r| / |r|."""
    return ((given.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-300)).item()


def tolerance(dtype: torch.dtype) -> float:
    return 1e-10 if dtype == torch.float64 else 1e-5
