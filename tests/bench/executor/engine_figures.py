"""What the engine is asked for, and what is made of its answers."""

import statistics

from rank_group import cpu_us, makespan_ms

RANKS, MICROBATCHES = 8, 20
SIZES = {1 << 10: "1 KiB", 1 << 20: "1 MiB", 4 << 20: "4 MiB"}
PACE_MS = (20, 20, 20, 60)  # F, I, W, and F&B.
SCHEDULES = ("dualpipe", "dualpipev", "1f1b", "zb1p")
DELAY_MS = 5


def step_of(schedule, size, pace_ms=PACE_MS, **more):
    return {"schedule": schedule, "microbatches": MICROBATCHES, "bytes": size, "pace_ms": list(pace_ms), **more}


def without_compute(schedule, steps):
    return step_of(schedule, 1 << 10, pace_ms=(0, 0, 0, 0), steps=steps)


class Samples:
    """Of one kind of step: makespans over the ideal, CPU, and what a step leaves behind."""

    def __init__(self):
        self.ratios, self.cpu, self.late_ms, self.last = [], [], [], []

    def add(self, answers, ideal_ms=None):
        ideal = ideal_ms or answers[0].get("ideal_ms")
        if ideal:
            self.ratios.append(makespan_ms(answers) / ideal)
        if "actions" in answers[0]:
            self.cpu.append(cpu_us(answers, "actions"))
        self.late_ms.append(max(answer.get("overshoot", {}).get("max_ms", 0) for answer in answers))
        self.last = answers

    def ratio(self):
        return statistics.median(self.ratios)

    def cpu_us(self):
        return statistics.median(self.cpu)

    def peak(self):
        return max(answer["peak_activations"] for answer in self.last)

    def figures(self):
        figures = {"oversleep_ms": statistics.median(self.late_ms)}
        if self.ratios:
            figures |= {"ratio": self.ratio(), "ratios": self.ratios}
        if self.cpu:
            figures |= {"cpu_us_per_action": self.cpu_us(), "cpu_us_samples": self.cpu}
        if self.last and "peak_activations" in self.last[0]:
            figures |= {"peak_activations": self.peak(), "ideal_ms": self.last[0].get("ideal_ms")}
        return figures
