"""`dualpipe ab` on the tiny MoE model, for real, and its report in a real browser.

    ab_report_test.py BUILD_DIR

Skipped where there is no browser (report_page.py).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from report_page import COLOURS, PageTest, run_tests

SOURCE = Path(__file__).resolve().parents[2]
SCHEDULES = ["builtin_1f1b", "interleaved_1f1b", "dualpipe", "dualpipev"]
NPROC = 4
SIZES = {"global_batch_size": 16, "seq_length": 16, "micro_batch_size": 1}
CHECKPOINTS = "checkpoints"  # Of the training that is compared, in the test's folder.


def prepare_data(programs, folder):
    """Sources of this project as tokens; their path."""
    path = folder / "tokens"
    subprocess.run([programs / "pretrain_gpt", "prepare-data", "--input", SOURCE / "plugin", "--extensions", ".cc",
                    "--output", path], check=True, stdout=subprocess.DEVNULL, timeout=60)
    return path


def run_ab(programs, folder):
    """The folder of results."""
    output = folder / "ab"
    saves = {"save": folder / CHECKPOINTS, "save_interval": 2, "load": folder / CHECKPOINTS,
             "exit_on_missing_checkpoint": "true"}
    sizes = [option for key, value in (SIZES | saves).items() for option in ("--set", f"{key}={value}")]
    subprocess.run([programs / "dualpipe", "ab", "--config", SOURCE / "configs/gpt_moe_tiny.yaml", "--schedules",
                    ",".join(SCHEDULES), "--iterations", "5", "--rounds", "1", "--nproc", str(NPROC), "-o", output,
                    "--set", f"data_path={prepare_data(programs, folder)}", *sizes],
                   check=True, stdout=subprocess.DEVNULL, timeout=400, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return output


class AbReport(PageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.output = run_ab(Path(sys.argv[1]).resolve() / "bin", cls.folder)
        cls.comparison = json.loads((cls.output / "comparison.json").read_text())

    def colours_of_lane(self, canvas, lane, lanes):
        """Every colour in a row of pixels through the lane."""
        row = self.lane_row(canvas, lane, lanes)
        return {tuple(pixel) for pixel in self.pixels(canvas, [[x, row] for x in range(canvas.size["width"])])}

    def check_lanes(self, schedule, kind):
        canvas = self.strip(schedule, kind)
        for lane in range(NPROC):
            seen = self.colours_of_lane(canvas, lane, NPROC)
            self.assertTrue(seen & set(COLOURS["F"]), f"{schedule}, {kind}, lane {lane}: no forward")
            self.assertTrue(seen & set(COLOURS["B"] + COLOURS["I"]), f"{schedule}, {kind}, lane {lane}: no backward")

    def test_every_rank_has_a_lane_in_both_timelines_of_every_schedule(self):
        self.open_page(self.output / "report.html")
        for schedule in SCHEDULES:
            for kind in ("measured", "simulated"):
                with self.subTest(schedule=schedule, kind=kind):
                    self.assertEqual(sorted(self.ranks_of(schedule, kind)), list(range(NPROC)))
                    self.check_lanes(schedule, kind)
            self.assertTrue(self.strip(schedule, "memory").is_displayed())

    def test_schedules_trained_alike(self):
        runs = self.comparison["runs"]
        self.assertEqual([run["schedule"] for run in runs], SCHEDULES)
        self.assertEqual([run["failure"] for run in runs], [None] * len(SCHEDULES))
        self.assertEqual(self.comparison["mismatches"], [])
        for run in runs:
            self.assertLess(run["first_loss_difference"], 1e-5)
            self.assertLess(run["loss_difference"], 1e-3)

    def test_checkpoints_of_the_configuration_are_left_alone(self):
        self.assertFalse((self.folder / CHECKPOINTS).exists())

    def test_the_table_has_the_figures_of_every_schedule(self):
        self.open_page(self.output / "report.html")
        for schedule in SCHEDULES:
            cells = self.find_all(f"#table tr[data-schedule='{schedule}'] [data-figure]")
            figures = {cell.get_attribute("data-figure"): cell.text for cell in cells}
            self.assertGreater(len(figures), 10)
            self.assertEqual([name for name, text in figures.items() if text == "–"], [], schedule)


if __name__ == "__main__":
    run_tests()
