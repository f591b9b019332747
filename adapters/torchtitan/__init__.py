"""DualPipe, DualPipeV and ZB1P in torchtitan, through ``ModelSpec.pipelining_fn``.

    spec = dualpipe.torchtitan.with_dualpipe(model_registry("debugmodel"))

``parallelism.pipeline_parallel_schedule`` then also takes ``"DualPipe"`` and ``"ZB1P"``, and ``"DualPipeV"`` runs in
the engine. Every other name is torchtitan's own. See README.md.
"""

from .seams import check_torchtitan

check_torchtitan()

from .pipeline import is_ours, pipeline_llm, pipeline_vlm, with_dualpipe

__all__ = ["is_ours", "pipeline_llm", "pipeline_vlm", "with_dualpipe"]
