"""DualPipeV: the V-shaped half of DualPipe, with one copy of the model."""

from __future__ import annotations

from dualpipe._reference import ReferencePipeline


class DualPipeV(ReferencePipeline):
    """The V-shaped schedule with the reference's face. Of 2 P stages rank r holds r and 2P-1-r, in that order.

    Inputs, labels, losses and outputs are on the first rank. num_chunks is at least 2 P.
    """

    schedule = "dualpipev"
