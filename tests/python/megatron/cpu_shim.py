"""Lets megatron-core, which assumes CUDA, run on the CPU over Gloo. For tests; nothing of the adapter needs it.

`install()` replaces, for the rest of the process, the names that megatron-core 0.19.2 takes from torch.cuda, and the
few places where it asks for a device "cuda" by name.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import numpy
import torch

_FACTORIES = ("zeros", "ones", "tensor", "empty", "full")
_MODULES_THAT_SAY_CUDA = (
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.optimizer.optimizer",
    "megatron.core.optimizer.clip_grads",
    "megatron.core.optimizer.grad_scaler",
    "megatron.core.optimizer.distrib_optimizer",
    "megatron.core.utils",
)


class _Stream:
    """A stream on which everything has happened already."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, _: Any = None) -> None: ...

    def wait(self, _: Any = None) -> None: ...

    def synchronize(self) -> None: ...


class _CpuTorch:
    """torch, whose factories make CPU tensors where they are asked for CUDA ones."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch, name)
        if name not in _FACTORIES:
            return value

        def make(*args: Any, **kwargs: Any) -> torch.Tensor:
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "cpu"
            return value(*args, **kwargs)

        return make


@contextlib.contextmanager
def _no_fork(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _patch_cuda() -> None:
    cuda = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.current_stream = lambda *_: _Stream()
    cuda.default_stream = lambda *_: _Stream()
    cuda.Stream = _Stream
    cuda.Event = _Event
    cuda.stream = lambda stream: contextlib.nullcontext(stream)
    cuda.synchronize = lambda *_: None
    cuda.get_rng_state = lambda *_: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.Tensor.record_stream = lambda self, _: None


def _patch_megatron() -> None:
    random = importlib.import_module("megatron.core.tensor_parallel.random")
    random.CudaRNGStatesTracker.fork = _no_fork
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    dispatcher = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")
    original = dispatcher.maybe_move_tensor_to_cpu

    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        if as_numpy and isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
            return numpy.asarray(tensor)
        return original(tensor, as_numpy, record_stream)

    dispatcher.maybe_move_tensor_to_cpu = move
    for name in _MODULES_THAT_SAY_CUDA:
        importlib.import_module(name).torch = _CpuTorch()


def install() -> None:
    """Call once per process, before anything of megatron-core runs."""
    _patch_cuda()
    _patch_megatron()
