"""One rank of the peers in Python: answers requests (tests/bench/support/serve.h) until its input ends.

    torch_rank.py [--reference DIR]

{"kind": "torch_1f1b"|"torch_zb1p"|"torch_zbv"|"torch_dualpipev"|"reference_dualpipe"|"reference_dualpipev", ..} with
what the engine is asked by (tests/bench/executor/engine.h) and answered likewise; {"order": true} for the order of a
kind of torch's.
"""

import argparse
import json
import os
import statistics
import sys
import time
import warnings

import reference
import torch
import torch.distributed as dist
from torch_schedules import TorchPipeline

PIPELINES = {}


def pipeline_of(request, rank, ranks):
    key = json.dumps([request[name] for name in ("kind", "microbatches", "bytes", "pace_ms")])
    if key not in PIPELINES:
        make = reference.ReferencePipeline if request["kind"] in reference.KINDS else TorchPipeline
        PIPELINES[key] = make(request, rank, ranks)
    return PIPELINES[key]


def rehearse(pipeline):
    """A step that does not sleep."""
    pipeline.sleeper.rehearses = True
    pipeline.step()
    pipeline.sleeper.rehearses = False
    return {"ready": True}


def timed(request, body):
    time.sleep(max(0.0, request["at"] - time.monotonic()))
    cpu, began = time.process_time(), time.monotonic()
    body()
    return {"began": began, "ended": time.monotonic(), "cpu_s": time.process_time() - cpu}


def answer(request, rank, ranks):
    pipeline = pipeline_of(request, rank, ranks)
    if "at" not in request:
        return {"order": pipeline.csv()} if request.get("order") else rehearse(pipeline)
    steps = request.get("steps", 1)

    def body():
        for _ in range(steps):
            pipeline.step()

    pipeline.sleeper.overslept_ms.clear()
    result = timed(request, body)
    late = pipeline.sleeper.overslept_ms
    if hasattr(pipeline, "actions"):
        result |= {"actions": steps * pipeline.actions, "operations": steps * pipeline.operations}
    return result | {"overshoot": {"sleeps": len(late), **({"median_ms": statistics.median(late),
                                                            "max_ms": max(late)} if late else {})}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reference")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.reference:
        sys.path.insert(0, options.reference)
    dist.init_process_group("gloo")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for line in sys.stdin:
        try:
            request = json.loads(line)
            print(json.dumps(answer(request, rank, ranks) if request else {}), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
            raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
