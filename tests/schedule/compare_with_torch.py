"""compare_with_torch.py PRINT_SCHEDULE: our schedules equal torch's cell by cell, and torch takes our programs.

Torch's generators are called without stages or process groups: they read a handful of attributes.
"""
import subprocess
import sys
import tempfile

from torch.distributed.pipelining import schedules as torch_schedules


def ours(name, ranks, micro_batches, last):
    command = [sys.argv[1], name, str(ranks), str(micro_batches), str(last)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def theirs(generator, ranks, micro_batches, chunks):
    schedule = object.__new__(generator)
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        return None  # Torch refuses what we take.
    schedule.__dict__.update(
        pp_group_size=ranks, n_local_stages=chunks, _n_microbatches=micro_batches, num_stages=ranks * chunks,
        number_of_rounds=rounds, microbatches_per_round=micro_batches // rounds)
    rows = (schedule._calculate_single_rank_operations(rank) for rank in range(ranks))
    return "".join(",".join(str(action) for action in row if action is not None) + "\n" for row in rows)


def compare(name, generator, chunks, sizes):
    for ranks, micro_batches in sizes:
        expected = theirs(generator, ranks, micro_batches, chunks)
        if expected is not None:
            assert ours(name, ranks, micro_batches, chunks) == expected, (name, ranks, micro_batches, chunks)


def load(name, ranks, micro_batches, chunks):
    """Torch takes the lowered program, and its own simulator runs it to the end."""
    schedule = object.__new__(torch_schedules._PipelineScheduleRuntime)
    schedule.__dict__.update(
        _stages=[], _num_stages=ranks * chunks, _n_microbatches=micro_batches, pp_group_size=ranks,
        _max_active_stages=3, _unshard_lookahead="full", _max_outstanding_sends=None, _defer_pp_recv=False,
        _defer_reduce_grad_wait=False)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(ours(name, ranks, micro_batches, "torch"))
        file.flush()
        schedule._load_csv(file.name, format="compute_comms")
    rows = schedule.pipeline_order_with_comms
    assert sorted(rows) == list(range(ranks))
    for rank, row in rows.items():  # The simulator knows neither pairs nor reductions.
        parts = [part for action in row for part in action.sub_actions or (action,)]
        rows[rank] = [part for part in parts if "REDUCE_GRAD" not in part.computation_type.value]
    schedule._simulate()


SIZES = [(ranks, micro_batches) for ranks in range(1, 9) for micro_batches in (1, 2, 3, 5, 8, 13, 16, 24)]
compare("zb1p", torch_schedules.ScheduleInterleavedZeroBubble, 1, SIZES)
compare("dualpipev", torch_schedules.ScheduleDualPipeV, 2, [(r, m) for r, m in SIZES if m >= 2 * r])
for chunks in (2, 3):
    multiples = [(r, m) for r, m in SIZES if m % r == 0]
    compare("interleaved_1f1b", torch_schedules.ScheduleInterleaved1F1B, chunks, multiples)
for name, chunks in (("1f1b", 1), ("zb1p", 1), ("interleaved_1f1b", 2), ("dualpipev", 2)):
    for ranks, micro_batches in ((1, 4), (2, 4), (4, 8), (4, 12)):
        load(name, ranks, micro_batches, chunks)
