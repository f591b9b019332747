"""The engine with compute that sleeps: eight ranks, real processes, real Gloo, on as few cores as there are.

    bench_executor [--json] [--repeats N] [--schedules A,B] [--output DIR]

Exits with 0 where every bound is reached, 1 where one is missed, 2 where nothing was measured; tests/bench/README.md.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from bounds import bound  # noqa: E402
from engine_figures import DELAY_MS, PACE_MS, RANKS, SCHEDULES, SIZES, Samples, step_of, without_compute  # noqa: E402
from program import leave_with, parser_of, report_and_judge  # noqa: E402
from rank_group import RankGroup  # noqa: E402

LOOPBACK_US = 25     # CPU of an action.
DELAYED_RATIO = 1.02


def measure_steps(engine, schedule, options):
    """By size."""
    figures = {}
    for size in options.sizes:
        samples, request = Samples(), step_of(schedule, size, options.pace)
        engine.prepare(request)
        for _ in range(options.repeats):
            samples.add(engine.measure(request))
        figures[size] = samples.figures()
    return figures


def measure_delayed(engine, schedule, options):
    samples, request = Samples(), step_of(schedule, 1 << 10, options.pace, delay_ms=DELAY_MS)
    engine.prepare(request)
    for _ in range(options.repeats):
        samples.add(engine.measure(request))
    return samples.figures()


def measure_cpu(engine, threads, schedule, options):
    """Without compute: over Gloo, and over loopback with ranks as threads."""
    over = {"gloo": Samples(), "loopback": Samples()}
    request = without_compute(schedule, options.steps)
    engine.prepare(request)
    for _ in range(options.repeats):
        over["gloo"].add(engine.measure(request))
        over["loopback"].add(threads.measure({**request, "ranks": RANKS}))
    return {name: samples.figures() for name, samples in over.items()}


def write_run_files(engine, schedule, options):
    """The run files of a few steps, one folder per schedule (docs/run_files.md)."""
    folder = options.output / schedule
    folder.mkdir(parents=True, exist_ok=True)
    engine.measure(step_of(schedule, options.sizes[0], options.pace, steps=options.repeats, output=str(folder)))
    return str(folder)


def measure(options):
    report = {}
    with (RankGroup("the engine", [options.program], RANKS) as engine,
          RankGroup("the engine's threads", [options.program, "--threads"], 0) as threads):
        engine.wait_until_up()
        threads.wait_until_up()
        for schedule in options.schedules:
            engine.real_time(False)
            report[schedule] = {"cpu": measure_cpu(engine, threads, schedule, options)}
            report["real_time"] = engine.real_time(True)
            report[schedule] |= {"steps": measure_steps(engine, schedule, options),
                                 "delayed": measure_delayed(engine, schedule, options)}
            if options.output:
                report[schedule]["output"] = write_run_files(engine, schedule, options)
    return report


def judge(report, options):
    rows = []
    for schedule in options.schedules:
        cpu = report[schedule]["cpu"]["loopback"]["cpu_us_per_action"]
        rows.append(bound(cpu, LOOPBACK_US, f"{schedule}: CPU per action over loopback", unit="us"))
        rows.append(bound(report[schedule]["delayed"]["ratio"], DELAYED_RATIO,
                          f"{schedule}: makespan / ideal, links of {DELAY_MS} ms"))
    return rows


def print_report(report, options):
    print(f"{RANKS} ranks, F, I, W and F&B of {', '.join(str(ms) for ms in options.pace)} ms"
          + ("" if report["real_time"] else "; without real-time priority, so what else runs counts too"))
    print(f"  {'schedule':12}{'message':>8}{'ideal ms':>10}{'makespan / ideal':>18}{'CPU us per action':>19}"
          f"{'peak live':>11}{'worst oversleep ms':>20}")
    for schedule in options.schedules:
        for size, row in report[schedule]["steps"].items():
            print(f"  {schedule:12}{SIZES.get(size, size):>8}{row['ideal_ms']:10.0f}{row['ratio']:18.4f}"
                  f"{row['cpu_us_per_action']:19.0f}{row['peak_activations']:11}{row['oversleep_ms']:20.2f}")
    for schedule in options.schedules:
        gloo, loopback = (report[schedule]["cpu"][over]["cpu_us_per_action"] for over in ("gloo", "loopback"))
        print(f"  {schedule}: no compute, 1 KiB: {gloo:.0f} us per action over Gloo, {loopback:.1f} us over loopback")
    print()


def parse():
    parser = parser_of("bench_executor", __doc__, SIZES, PACE_MS)
    parser.add_argument("--program", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=3, help="steps of each kind, of which the median counts")
    parser.add_argument("--steps", type=int, default=20, help="in a row, without compute")
    parser.add_argument("--schedules", type=lambda text: text.split(","), default=list(SCHEDULES))
    parser.add_argument("--output", type=pathlib.Path, help="where each schedule's run files go")
    return parser.parse_args()


def main():
    return report_and_judge(parse(), measure, judge, print_report)


if __name__ == "__main__":
    leave_with("bench_executor", main)
