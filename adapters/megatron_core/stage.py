"""A chunk of Megatron's model as a stage of the engine: its forward is Megatron's own `forward_step`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from megatron.core.pipeline_parallel import schedules
from megatron.core.utils import get_attr_wrapped_model

from dualpipe.core import Stage

from .gradients import placement_of

Tensors = tuple[torch.Tensor | None, ...]
_LAYER = re.compile(r"\blayers\.(\d+)\.")


@dataclasses.dataclass
class StepContext:
    """What one call of the forward-backward function gives to a stage."""

    forward_step_func: Callable[..., Any]
    data_iterator: Iterator[Any] | None
    config: Any  # The schedule's side of the TransformerConfig.
    num_microbatches: int
    cp_size: int
    forward_only: bool
    collect_non_loss_data: bool
    first_val_step: bool | None


def layer_offset(model: torch.nn.Module) -> int:
    """How many decoder layers of the whole model precede those of a chunk."""
    layers = getattr(getattr(model, "decoder", None), "layers", None)
    return layers[0].layer_number - 1 if layers is not None and len(layers) > 0 else 0


class MegatronStage(Stage):
    """Takes hidden states [s, b, h] (nothing on the first stage) and gives them, or on the last the scaled loss.

    The loss is computed in the forward, since Megatron's `loss_func` belongs to a call of `forward_step_func`; the
    engine's criterion hands it on. `chunk` may be wrapped (DDP, Float16Module).
    """

    def __init__(self, chunk: torch.nn.Module) -> None:
        self.chunk = chunk
        self.placement = placement_of(chunk)
        self.model = get_attr_wrapped_model(chunk, "pre_process", return_model_obj=True)
        self.losses: dict[int, Any] = {}  # What loss_func returned last, by micro-batch of the step.
        self.tokens: list[torch.Tensor] = []  # Per micro-batch, on the last stage.
        self._offset = layer_offset(self.model)
        self._step: StepContext | None = None
        self._micro_batch = 0
        self._is_first_micro_batch = True

    def begin_step(self, step: StepContext) -> None:
        """Told before the engine runs a step or an evaluation."""
        self._step = step
        self._is_first_micro_batch = True
        self.losses.clear()
        self.tokens.clear()

    def begin_micro_batch(self, micro_batch: int) -> None:
        self._micro_batch = micro_batch

    @property
    def step(self) -> StepContext:
        if self._step is None:
            raise RuntimeError(f"stage {self.placement.stage} runs outside a step")
        return self._step

    def named_parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        return self.model.named_parameters()

    def logical_name(self, stage: int, local_name: str) -> str:
        """Layers are numbered within the whole model: `decoder.layers.5.mlp.linear_fc1.weight`."""
        return _LAYER.sub(lambda found: f"layers.{int(found[1]) + self._offset}.", local_name, count=1)

    def take_first_micro_batch(self) -> bool:
        """What Megatron calls is_first_microbatch; True once per step."""
        step, is_first = self.step, self._is_first_micro_batch
        self._is_first_micro_batch = False
        return schedules.check_first_val_step(step.first_val_step, step.forward_only, is_first)

    def keep_results(self, store: list[Any], tokens: torch.Tensor) -> None:
        """Remembers what the micro-batch's loss_func gave; `store` has one entry on the last stage."""
        if self.placement.is_last:
            self.losses[self._micro_batch] = store.pop()
            self.tokens.append(tokens)

    def forward(self, inputs: Tensors) -> torch.Tensor | Tensors:
        step, store = self.step, []
        output, tokens = schedules.forward_step(
            step.forward_step_func,
            step.data_iterator,
            self.chunk,
            step.num_microbatches,
            None if self.placement.is_first else inputs[0],
            store,
            step.config,
            step.cp_size,
            collect_non_loss_data=step.collect_non_loss_data,
            is_first_microbatch=self.take_first_micro_batch(),
            current_microbatch=self._micro_batch,
            is_last_stage=self.placement.is_last,
        )
        self.keep_results(store, tokens)
        return self.result(output)

    def result(self, output: Any) -> torch.Tensor | Tensors:
        """What the engine gets: an evaluation's last stage may return anything, of which the engine needs nothing."""
        return () if self.placement.is_last and self.step.forward_only else output
