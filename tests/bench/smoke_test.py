"""The benchmarks' machinery, small and quick: the figures are there and fit each other. No bound on any time.

    smoke_test.py BUILD_DIR
"""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "support"), str(HERE / "peers")]
import bench_peers  # noqa: E402
import run_all  # noqa: E402
from bounds import all_reached, bound  # noqa: E402
from rank_group import Failed, RankGroup  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop()).absolute()
SMALL = ["--sizes", "1024", "--pace", "2,2,2,6", "--steps", "1"]


def report_of(program, *arguments):
    done = subprocess.run([BUILD / "bin" / program, "--json", *SMALL, *arguments], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout), done.returncode


def has_torch():
    return importlib.util.find_spec("torch") is not None


class BenchExecutor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.report, cls.code = report_of("bench_executor", "--repeats", "1", "--schedules", "dualpipe,1f1b",
                                         "--output", cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_a_step_takes_what_is_simulated_at_least(self):
        for schedule, ideal_ms in (("dualpipe", 132), ("1f1b", 162)):
            step = self.report[schedule]["steps"]["1024"]
            self.assertEqual(step["ideal_ms"], ideal_ms)
            self.assertGreaterEqual(step["ratio"], 1)
            self.assertGreater(step["cpu_us_per_action"], 0)

    def test_peaks_are_those_of_the_schedules(self):
        self.assertEqual(self.report["dualpipe"]["steps"]["1024"]["peak_activations"], 9)
        self.assertEqual(self.report["1f1b"]["steps"]["1024"]["peak_activations"], 8)

    def test_longer_links_are_simulated_too(self):
        self.assertGreater(self.report["1f1b"]["delayed"]["ideal_ms"], 162)
        self.assertGreaterEqual(self.report["1f1b"]["delayed"]["ratio"], 1)

    def test_verdict_and_exit_code_agree(self):
        self.assertEqual(self.code, 0 if all_reached(self.report["bounds"]) else 1)
        self.assertEqual(len(self.report["bounds"]), 4)

    def test_run_files_hold_every_rank_and_action(self):
        for rank in range(8):
            file = pathlib.Path(self.folder.name) / "dualpipe" / f"timeline_rank{rank}.jsonl"
            header, step = (json.loads(line) for line in file.read_text().splitlines())
            self.assertEqual((header["rank"], header["schedule"]), (rank, "dualpipe"))
            cells = " ".join(span[0] for span in step["spans"])
            self.assertEqual(sum(cells.count(f"{stage}F") for stage in header["stages"]), 20)


class BenchPeers(unittest.TestCase):
    def test_every_peer_has_figures_and_every_bound_a_verdict(self):
        if not has_torch():
            done = subprocess.run([BUILD / "bin" / "bench_peers"], capture_output=True, text=True)
            self.assertRegex(done.stderr, "^bench_peers: the peers in Python need torch")
            return
        report, code = report_of("bench_peers", "--rounds", "1", "--cpu-rounds", "1")
        steps = report["steps"]["1024"]
        for peer in ("dualpipe", "dualpipev", "1f1b", "torch_dualpipev", "torch_1f1b", "torch_zbv", "torch_zb1p",
                     "bare early dualpipe", "bare waiting dualpipev"):
            self.assertGreaterEqual(steps[peer]["ratio"], 0.99, peer)
        for peer in ("dualpipe", "torch_dualpipev", "bare early dualpipe", "bare yielding dualpipe", "ping"):
            self.assertGreater(report["cpu"][peer]["cpu_us_per_action"], 0, peer)
        self.assertEqual(report["ideal_ms"]["dualpipe"], 132)
        self.assertEqual(report["ideal_ms"]["dualpipev"], 268)
        self.assertGreater(report["ideal_ms"]["zbv"], 2 * 20 * 6)
        self.assertEqual(code, 0 if all_reached(report["bounds"]) else 1)
        self.check_rows([row["what"] for row in report["bounds"]])

    def check_rows(self, rows):
        for schedule in ("dualpipe", "dualpipev"):
            for peer in ("a bare loop", "PyTorch's DualPipeV"):
                self.assertIn(f"{schedule}: CPU per action over Gloo, of {peer}'s", rows)
        self.assertIn("builtin_1f1b, 1 KiB: makespan / ideal", rows)


class RealTime(unittest.TestCase):
    def test_ranks_get_back_the_policy_that_they_had(self):
        with RankGroup("an echo", ["cat"], 0) as group:
            rank = group.ranks[0].pid
            os.sched_setscheduler(rank, os.SCHED_BATCH, os.sched_param(0))
            group.real_time(False)
            for _ in range(2):
                ahead = group.real_time(True)
                self.assertEqual(os.sched_getscheduler(rank), os.SCHED_FIFO if ahead else os.SCHED_BATCH)
            group.real_time(False)
            self.assertEqual(os.sched_getscheduler(rank), os.SCHED_BATCH)


class BenchPeersBounds(unittest.TestCase):
    """Of figures made up here."""

    def test_cpu_is_compared_turn_by_turn(self):
        def samples(*us):
            return {"cpu_us_samples": list(us), "cpu_us_per_action": sorted(us)[len(us) // 2]}

        cpu = {"dualpipe": samples(100, 300, 200), "bare early dualpipe": samples(100, 250, 100),
               "dualpipev": samples(90, 90, 90), "bare early dualpipev": samples(100, 60, 90),
               "torch_dualpipev": samples(300, 900, 400), "bare yielding dualpipe": samples(20, 30, 40),
               "bare yielding dualpipev": samples(20, 30, 40)}
        rows = bench_peers.judge_cpu(cpu)
        self.assertEqual([round(row["value"], 3) for row in rows], [1.2, 0.333, 1.0, 0.225])
        self.assertEqual([row["limit"] for row in rows], [1.2, 1 / 3, 1.2, 1 / 3])
        self.assertEqual(rows[0]["of"], "200 of 100 us, 3 turns; 30 us with Gloo's threads as the engine has them")

    def test_a_build_without_the_trainer_misses_its_row(self):
        steps = {name: {"ratio": 1.1} for name in ("dualpipe", "dualpipev", "torch_dualpipev", "torch_1f1b", "1f1b")}
        rows = {row["what"]: row for row in bench_peers.judge_steps(steps, 1 << 10, has_reference=False)}
        self.assertEqual(rows["builtin_1f1b, 1 KiB: makespan / ideal"]["of"], "the trainer is not built")
        self.assertFalse(rows["builtin_1f1b, 1 KiB: makespan / ideal"]["reached"])
        others = bench_peers.judge_steps(steps, 1 << 20, has_reference=False)
        self.assertNotIn("builtin_1f1b, 1 MiB: makespan / ideal", [row["what"] for row in others])


class BenchPredict(unittest.TestCase):
    def test_every_schedule_has_a_row(self):
        done = subprocess.run([BUILD / "bin" / "bench_predict", "--json", "--ranks", "2", "--microbatches", "4",
                               "--steps", "1"], capture_output=True, text=True)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual([case["setting"] for case in report["cases"]],
                         ["1 KiB", "1 MiB", "1 KiB, links 5 ms longer"])
        self.assertEqual(len(report["bounds"]), 15)
        for case in report["cases"]:
            for figures in case["schedules"].values():
                self.assertGreater(figures["predicted_ms"], 2 * 4 * 22)  # As if there were pairs alone.
                self.assertGreater(figures["measured_ms"], 2 * 4 * 22)
        self.assertEqual(done.returncode, 0 if all_reached(report["bounds"]) else 1)


class BenchAuto(unittest.TestCase):
    def test_every_order_has_a_makespan_and_a_time(self):
        done = subprocess.run([BUILD / "bin" / "bench_auto", "--json", "--time-budget", "0.1"], capture_output=True,
                              text=True)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        rows = json.loads(done.stdout)["bounds"]
        self.assertEqual([row["limit"] for row in rows], [63, 60, 64.25, 60, 55.25, 60, 59, 60])
        for row, named in zip(rows[::2], (66, 71, 55.5, 60.5)):
            self.assertLessEqual(row["value"], named)
            self.assertEqual(row["of"], f"dualpipev takes {named}")


class BenchBinding(unittest.TestCase):
    def test_both_languages_are_measured_where_there_is_a_package(self):
        if not (BUILD / "python").exists():
            return self.assertFalse((BUILD / "bin" / "bench_binding").exists())
        done = subprocess.run([BUILD / "bin" / "bench_binding", "--json", "--steps", "2"], capture_output=True,
                              text=True)
        report = json.loads(done.stdout)
        self.assertEqual([row["limit"] for row in report["bounds"]], [50.0, 50.0])
        for figures in report["schedules"].values():
            self.assertGreater(figures["engine_us"], 0)
            self.assertGreater(figures["python_us"], 0)
        self.assertEqual(done.returncode, 0 if all_reached(report["bounds"]) else 1)


class Table(unittest.TestCase):
    def test_a_miss_is_a_miss(self):
        self.assertTrue(all_reached([bound(1.0, 1.0, "equal")]))
        self.assertFalse(all_reached([bound(1.0, 1.0, "equal"), bound(1.1, 1.0, "over")]))

    def test_a_benchmark_that_measures_nothing_says_why(self):
        result = run_all.run(BUILD, "bench_split", ["--hidden", "3", "--heads", "2"], run_all.split_bounds)
        self.assertEqual(result["failure"], "bench_split: --heads must divide --hidden")

    def test_what_is_not_built_or_says_nothing_misses_its_row(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            (build / "bin").mkdir()
            programs = {"bench_split": "echo 'Traceback' >&2; echo 'KeyError: no such file' >&2; exit 1",
                        "bench_auto": "exit 0", "bench_binding": "echo null",
                        "bench_executor": "echo 'it fell over' >&2; echo 'frame #0: main' >&2; exit 2"}
            for name, text in programs.items():
                (build / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
                (build / "bin" / name).chmod(0o755)
            told = io.StringIO()
            with contextlib.redirect_stdout(told):
                code = run_all.main([folder, "--json", str(build / "all.json")])
            results = {result["name"]: result for result in json.loads((build / "all.json").read_text())}
        self.assertEqual(code, 1)
        self.assertIn("1 of 8 bounds reached; nothing measured by bench_peers, bench_executor, ", told.getvalue())
        self.assertEqual(results["bench_peers"]["failure"], "it is not built")
        self.assertEqual(results["bench_split"]["failure"], "Traceback\nKeyError: no such file")
        self.assertEqual(results["bench_auto"]["failure"], "it ended with 0, without a report")
        self.assertRegex(results["bench_binding"]["failure"], "^its report is not what it should be: TypeError: ")
        self.assertEqual(results["bench_executor"]["failure"], "it fell over")
        self.assertRegex(told.getvalue(), "bench_split: nothing measured .* MISSED  Traceback; KeyError: no such file")
        self.assertRegex(told.getvalue(), r"time of all +[\d.]+ s  at most    600.0 s  reached")

    def test_more_than_ten_minutes_is_a_miss(self):
        def row(seconds):
            return run_all.total_of([{"seconds": seconds / 2}] * 2)["bounds"][0]

        self.assertTrue(row(599)["reached"])
        self.assertFalse(row(601)["reached"])

    def test_bounds_of_the_split(self):
        arguments = ["--hidden", "16", "--tokens", "8", "--heads", "2", "--repeats", "1"]
        rows = run_all.run(BUILD, "bench_split", arguments, run_all.split_bounds)["bounds"]
        self.assertEqual([row["limit"] for row in rows], [1.05, 1.05])

    def test_a_rank_that_fails_is_named(self):
        program = [BUILD / "bin" / "bench_executor_rank", "--threads"]
        with self.assertRaisesRegex(Failed, r"^rank 0 of the threads: .*got \"nothing\"$"):
            with RankGroup("the threads", program, 0) as group:
                group.measure({"schedule": "nothing", "microbatches": 4, "bytes": 64, "pace_ms": [0] * 4, "ranks": 2})


if __name__ == "__main__":
    unittest.main(verbosity=1)
