"""The report of a comparison in a real browser: lanes, figures, zoom, hover, keys, paper; no message, no request.

    report_test.py WRITE_REPORTS

Skipped where there is no browser (report_page.py).
"""

import base64
import json
import re
import subprocess
import sys
import time

from report_page import AXIS, COLOURS, PageTest, run_tests

try:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    pass  # run_tests() says so.


def ops_of(cell):
    return [(int(s), k, int(m)) for s, k, m in re.findall(r"(\d+)([FBIW])(\d+)", cell)]


def cells_of(spans):
    """(operation, start, end): halves of a pair, in seconds."""
    for cell, start, end in spans:
        ops = ops_of(cell)
        part = (end - start) / len(ops)
        for index, op in enumerate(ops):
            yield op, start + index * part, start + (index + 1) * part


def at(run, figure):
    for key in figure.split("."):
        run = (run or {}).get(key)
    return run


class Report(PageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        subprocess.run([sys.argv[1], str(cls.folder)], check=True, timeout=240)

    def open(self, name):
        """The comparison's JSON; the page is loaded and drawn."""
        self.open_page(self.folder / f"{name}.html")
        return json.loads((self.folder / f"{name}.json").read_text())

    def range_of(self, schedule):
        """The times that a card says it shows, in milliseconds."""
        self.ready()
        text = self.find(f"article[data-schedule='{schedule}'] output").text
        return [float(number) for number in re.findall(r"[\d.]+", text)]

    def check_lanes(self, run, kind, limit, bidirectional):
        """Labels, and the colour of every action that is wide enough, where the JSON says that it ran."""
        canvas = self.strip(run["schedule"], kind)
        width, ranks = canvas.size["width"], run[kind]["ranks"]
        self.assertEqual(self.ranks_of(run["schedule"], kind), [rank["rank"] for rank in ranks])
        half = (1 + max(op[2] for rank in ranks for op, _, _ in cells_of(rank["spans"]))) / 2
        points, wanted = [], []
        for lane, rank in enumerate(ranks):
            before, row = len(points), self.lane_row(canvas, lane, len(ranks))
            for (stage, letter, micro_batch), start, end in cells_of(rank["spans"]):
                if (end - start) / limit * width < 2.5:
                    continue
                dark = micro_batch >= half if bidirectional else rank["stages"].index(stage) % 2 == 1
                points.append([int((start + end) / 2 / limit * width), row])
                wanted.append(COLOURS[letter][dark])
            self.assertGreater(len(points), before, f"rank {rank['rank']} of {run['schedule']}, {kind}")
        for point, colour, found in zip(points, wanted, self.pixels(canvas, points), strict=True):
            self.assertEqual(tuple(found), colour, f"{run['schedule']}, {kind}, pixel {point}")

    def limit(self, comparison):
        """The time that all cards show at first: a little more than the longest timeline."""
        ends = [
            span[2]
            for run in comparison["runs"]
            for kind in ("measured", "simulated")
            for rank in (run[kind] or {"ranks": []})["ranks"]
            for span in rank["spans"]
        ]
        return 1.002 * max(ends)

    def test_every_rank_has_a_lane_in_both_timelines(self):
        comparison = self.open("runs")
        drawn = 0
        for run in comparison["runs"]:
            if run["failure"]:
                self.assertEqual(self.find_all(f"[data-schedule='{run['schedule']}'] canvas"), [])
                continue
            for kind in ("measured", "simulated"):
                self.check_lanes(run, kind, self.limit(comparison), run["schedule"] == "dualpipe")
                drawn += 1
            self.assertTrue(self.strip(run["schedule"], "memory").is_displayed())
        self.assertEqual(drawn, 8)

    def test_sixty_four_ranks_are_drawn_in_time(self):
        began = time.monotonic()
        comparison = self.open("large")
        self.strip("dualpipe", "measured")
        self.assertLess(time.monotonic() - began, 30)
        for run in comparison["runs"]:
            for kind in ("measured", "simulated"):
                self.check_lanes(run, kind, self.limit(comparison), run["schedule"] == "dualpipe")
        canvas = self.strip("dualpipe", "measured")
        canvas.click()
        began = time.monotonic()
        for _ in range(5):
            canvas.send_keys("+")
            self.ready()
        self.assertLess(time.monotonic() - began, 15)

    def test_idle_is_the_bubble_of_the_table(self):
        """Two pipelines that begin and end at other times, and actions that wait for messages."""
        comparison = self.open("skewed")
        run = comparison["runs"][0]
        self.assertEqual([rank["pipeline"] for rank in run["measured"]["ranks"]], [0, 0, 1, 1])
        waits = sum(span[3] for rank in run["measured"]["ranks"] for span in rank["spans"] if len(span) == 4)
        self.assertGreater(waits, 0)
        bubble = self.find("#table [data-figure=bubble]")
        self.assertEqual(bubble.text, f"{100 * run['bubble']:.1f} %")
        header = self.find("[data-block=measured] header").text
        self.assertIn(f"Idle {100 * run['bubble']:.1f} % of the ranks' time: ", header)
        self.assertIn(", of which 5.6 % waiting for messages within actions.", header)
        shares = [lane.text for lane in self.find_all("[data-block=measured] .shares div")]
        self.assertEqual(shares, ["44.4 %", "33.3 %"] * 2)  # 4 and 3 of 9 seconds.

    def test_hatching_ends_where_a_pipeline_does(self):
        self.open("skewed")
        canvas = self.strip("1f1b", "measured")
        pitch = (canvas.size["height"] - AXIS) / 4
        idle, outside = (self.hover(canvas, 2, share, pitch) for share in (4 / 10.02, 0.5 / 10.02))
        self.assertIn("Idle on rank 2, warm-up", idle)
        self.assertEqual(outside, "")

    def test_what_was_not_run_did_not_fail(self):
        def change(comparison):
            comparison["runs"][4].update(not_run=True, failure="the comparison stopped before its turn")

        self.open_changed(change)
        self.assertEqual(self.find("#table tr[data-schedule='mine.csv'] td").text,
                         "not run: the comparison stopped before its turn")
        self.assertEqual(self.find("article[data-schedule='mine.csv'] .facts").text,
                         "Not run: the comparison stopped before its turn")

    def test_without_a_baseline_differences_have_another_reference(self):
        def change(comparison):
            comparison.update(runs=[comparison["runs"][index] for index in (4, 3, 1)], reference="dualpipe",
                              baseline="mine.csv")

        self.open_changed(change)
        chart = self.find_all("#charts .chart")[1]
        self.assertIn("Difference of losses from dualpipe", chart.text)
        self.assertIn("|loss − loss of dualpipe| / |loss of dualpipe|. zb1p: at most ", chart.text)
        self.assertEqual([path.get_attribute("data-schedule")
                          for path in chart.find_elements(By.CSS_SELECTOR, ".series")], ["zb1p"])

    def test_figures_are_those_of_the_comparison(self):
        comparison = self.open("runs")
        rows = self.find_all("#table tbody tr")
        names = [row.get_attribute("data-schedule") for row in rows]
        self.assertEqual(names, [run["schedule"] for run in comparison["runs"]])
        seen = 0
        for row, run in zip(rows, comparison["runs"], strict=True):
            if run["failure"]:
                text = row.find_element(By.CSS_SELECTOR, "td").get_attribute("textContent")
                self.assertEqual(text, f"failed: {run['failure']}")
                continue
            for cell in row.find_elements(By.CSS_SELECTOR, "[data-figure]"):
                figure, value = cell.get_attribute("data-figure"), json.loads(cell.get_attribute("data-value"))
                self.assertEqual(value, at(run, figure), figure)
                self.check_shown(figure, value, cell.text)
                seen += 1
        self.assertEqual(seen, 4 * 20)
        self.assertEqual(self.find("#title").text, comparison["title"])
        self.assertIn(comparison["command"], self.find("#setting").text)
        self.assertIn("dualpipe holds twice the parameters", self.find("#notes").text)
        self.assertIn("dualpipe is the fastest by the median", self.find("#verdict").text)

    def check_shown(self, figure, value, text):
        """The digits that are shown are the value's, rounded."""
        if text in ("none", "–"):
            self.assertIn((text, value), (("none", 0), ("–", None)), figure)
            return
        shown, unit = re.match(r"([\d.e+-]+) ?(.*)", text).groups()
        factor = {"%": 0.01, "kB": 1e3, "MB": 1e6, "GB": 1e9}.get(unit, 1)
        digits = len(shown.split("e")[0].partition(".")[2])
        exponent = int(shown.partition("e")[2] or 0)
        rounding = 0.51 * 10 ** (exponent - digits)
        self.assertAlmostEqual(float(shown), value / factor, delta=rounding, msg=f"{figure}: {text}")

    def hover(self, canvas, rank, time_share, pitch):
        """Moves to a place in a lane, given as a share of the canvas's width."""
        x = time_share * canvas.size["width"] - canvas.size["width"] / 2
        y = AXIS + (rank + 0.3) * pitch - canvas.size["height"] / 2
        ActionChains(self.browser).move_to_element_with_offset(canvas, round(x), round(y)).perform()
        return self.find("#tooltip").text

    def test_hover_says_what_ran(self):
        comparison = self.open("runs")
        run = next(run for run in comparison["runs"] if run["schedule"] == "dualpipe")
        limit, rank = self.limit(comparison), run["measured"]["ranks"][2]
        canvas = self.strip("dualpipe", "measured")
        pitch = (canvas.size["height"] - AXIS) / 8
        cell, start, end = next(span for span in rank["spans"] if "OVERLAP" in span[0])
        text = self.hover(canvas, 2, (start + 0.4 * (end - start)) / limit, pitch)
        (f_stage, _, f_batch), (b_stage, _, b_batch) = ops_of(cell)
        self.assertIn(f"{f_stage}F{f_batch} + {b_stage}B{b_batch} on rank 2", text)
        forward = f"Forward of micro-batch {f_batch} in stage {f_stage}"
        self.assertIn(f"{forward}, overlapped with the backward of micro-batch {b_batch} in stage {b_stage}", text)
        times = [float(number) for number in re.search(r"this ([\d.]+) ms ([\d.]+) ms ([\d.]+) ms", text).groups()]
        for shown, wanted in zip(times, (1e3 * start, 1e3 * end, 1e3 * (end - start)), strict=True):
            self.assertAlmostEqual(shown, wanted, delta=0.002 * wanted)
        _, start, end = next(span for span in run["simulated"]["ranks"][2]["spans"] if span[0] == cell)
        other = [float(number) for number in re.search(r"simulated ([\d.]+) ms ([\d.]+) ms", text).groups()]
        self.assertAlmostEqual(other[0], 1e3 * start, delta=2e-3 * 1e3 * start)
        phases = [phase for phase in rank["phases"] if phase[0].startswith(f"{f_stage}F{f_batch} ")]
        for name, begin, finish, *waited in phases:
            line = next(line for line in text.splitlines() if line.startswith(name))
            numbers = [float(number) for number in re.findall(r"([\d.]+) ms", line)]
            self.assertAlmostEqual(numbers[1], 1e3 * (finish - begin), delta=0.01)
            self.assertEqual(len(numbers), 2 + len(waited))

    def test_hover_says_where_the_bubble_is(self):
        comparison = self.open("runs")
        canvas = self.strip("builtin_1f1b", "simulated")
        pitch = (canvas.size["height"] - AXIS) / 8
        first = comparison["runs"][0]["simulated"]["ranks"][7]["spans"][0][1]
        text = self.hover(canvas, 7, 0.5 * first / self.limit(comparison), pitch)
        self.assertIn("Idle on rank 7, warm-up", text)
        self.assertAlmostEqual(float(re.search(r"([\d.]+) ms$", text).group(1)), 1e3 * first, delta=0.1)
        block = "[data-schedule=builtin_1f1b] [data-block=simulated]"
        ranks = comparison["runs"][0]["simulated"]["ranks"]
        end = max(span[2] for rank in ranks for span in rank["spans"])
        for rank, lane in zip(ranks, self.find_all(f"{block} .shares div"), strict=True):
            idle = 1 - sum(span[2] - span[1] for span in rank["spans"]) / end
            self.assertEqual(lane.text, f"{100 * idle:.1f} %")
        self.assertRegex(self.find(f"{block} header").text, r"Idle [\d.]+ % of the ranks' time: warm-up [\d.]+ %")

    def test_memory_says_bytes(self):
        self.open("runs")
        canvas = self.strip("dualpipe", "memory")
        text = self.hover(canvas, 0, 0.3, (canvas.size["height"] - AXIS) / 8)
        self.assertRegex(text, r"^[\d.]+ MB on rank 0\nat [\d.]+ ms; at most 28.31 MB$")

    def test_wheel_buttons_and_drag(self):
        self.open("runs")
        canvas = self.strip("dualpipe", "measured")
        whole = self.range_of("dualpipe")
        others = self.range_of("zb1p")
        self.assertEqual(whole, others)
        box = canvas.rect
        origin = ScrollOrigin.from_element(canvas, -int(box["width"] / 4), 0)
        before = self.pixels(canvas, [[x, AXIS + 4] for x in range(0, int(box["width"]), 7)])
        wheel = ActionChains(self.browser).key_down(Keys.CONTROL).scroll_from_origin(origin, 0, -240)
        wheel.key_up(Keys.CONTROL).perform()
        zoomed = self.range_of("dualpipe")
        self.assertLess(zoomed[1] - zoomed[0], 0.6 * whole[1])
        at_pointer = whole[1] / 4
        self.assertAlmostEqual(zoomed[0] + (zoomed[1] - zoomed[0]) / 4, at_pointer, delta=0.01 * whole[1])
        self.assertNotEqual(before, self.pixels(canvas, [[x, AXIS + 4] for x in range(0, int(box["width"]), 7)]))
        self.assertEqual(self.range_of("zb1p"), others)
        ActionChains(self.browser).drag_and_drop_by_offset(canvas, -100, 0).perform()
        moved = self.range_of("dualpipe")
        shift = 100 / box["width"] * (zoomed[1] - zoomed[0])
        self.assertAlmostEqual(moved[0] - zoomed[0], shift, delta=0.01 * whole[1])
        card = self.find("article[data-schedule=dualpipe]")
        for label, share in (("zoom in", 0.5), ("zoom out", 2), ("later", 1)):
            length = moved[1] - moved[0]
            card.find_element(By.CSS_SELECTOR, f"button[aria-label='{label}']").click()
            moved = self.range_of("dualpipe")
            self.assertAlmostEqual(moved[1] - moved[0], share * length, delta=0.02 * whole[1])
        card.find_element(By.CSS_SELECTOR, "button[aria-label^='show as much time']").click()
        self.assertEqual(self.range_of("dualpipe"), whole)

    def test_the_wheel_scrolls_the_page_until_a_timeline_is_chosen(self):
        self.open("runs")
        canvas = self.strip("dualpipe", "measured")
        whole, scrolled = self.range_of("dualpipe"), self.run_js("return scrollY")
        ActionChains(self.browser).scroll_from_origin(ScrollOrigin.from_element(canvas), 0, 100).perform()
        self.assertEqual(self.range_of("dualpipe"), whole)
        self.assertNotEqual(self.run_js("return scrollY"), scrolled)
        canvas.click()
        ActionChains(self.browser).scroll_from_origin(ScrollOrigin.from_element(canvas), 0, -100).perform()
        self.assertNotEqual(self.range_of("dualpipe"), whole)

    def test_schedules_zoom_together_on_request(self):
        self.open("runs")
        self.run_js("document.getElementById('together').click()")
        self.strip("dualpipe", "simulated").send_keys("+", "+")
        zoomed = self.range_of("dualpipe")
        for schedule in ("builtin_1f1b", "zb1p", "dualpipev"):
            self.assertEqual(self.range_of(schedule), zoomed)

    def test_keys(self):
        comparison = self.open("runs")
        whole = self.range_of("dualpipe")
        canvas = self.strip("dualpipe", "measured")
        before = self.find("article[data-schedule=dualpipe] button:last-of-type")
        self.run_js("arguments[0].focus()", before)
        ActionChains(self.browser).send_keys(Keys.TAB).perform()
        self.assertEqual(self.browser.switch_to.active_element, canvas)
        spans = comparison["runs"][3]["measured"]["ranks"][0]["spans"]
        for index, _ in enumerate(spans[:4]):
            canvas.send_keys(Keys.ARROW_RIGHT)
            self.assertIn(f"{spans[index][0]} on rank 0", self.find("#tooltip").text)
        canvas.send_keys(Keys.ARROW_DOWN)
        self.assertIn("on rank 1", self.find("#tooltip").text)
        canvas.send_keys("+++")
        zoomed = self.range_of("dualpipe")
        self.assertAlmostEqual(zoomed[1] - zoomed[0], whole[1] / 8, delta=0.01 * whole[1])
        self.assertEqual(canvas.get_attribute("data-phases"), "true")
        canvas.send_keys(Keys.SHIFT, Keys.ARROW_RIGHT)
        self.assertGreater(self.range_of("dualpipe")[0], zoomed[0])
        canvas.send_keys(Keys.ESCAPE)
        self.assertFalse(self.find("#tooltip").is_displayed())
        canvas.send_keys("0")
        self.assertEqual(self.range_of("dualpipe"), whole)

    def test_curves(self):
        comparison = self.open("runs")
        done = [run["schedule"] for run in comparison["runs"] if not run["failure"]]
        charts = self.find_all("#charts .chart")
        series = [chart.find_elements(By.CSS_SELECTOR, ".series") for chart in charts]
        names = [[path.get_attribute("data-schedule") for path in paths] for paths in series]
        self.assertEqual(names, [done, done[1:], done])
        self.assertIn("zb1p: equal to the bit", charts[1].text)
        svg = charts[0].find_element(By.CSS_SELECTOR, "svg")
        self.run_js("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", svg)
        svg.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        losses = [f"{name} {run['losses'][1]:.7g}" for name, run in zip(done, comparison["runs"], strict=False)]
        self.assertIn(f"Iteration 2: {', '.join(losses)}", charts[0].text)
        self.find("#series button").click()
        self.assertEqual(len(charts[0].find_elements(By.CSS_SELECTOR, ".series")), len(done) - 1)

    def test_little_is_known(self):
        comparison = self.open("sparse")
        self.assertEqual(self.find("#title").text, comparison["title"])
        self.assertEqual(self.find("#table tbody th").text, "<b>1f1b</b> baseline")
        figures = {c.get_attribute("data-figure"): c.text for c in self.find_all("#table [data-figure]")}
        self.assertEqual(figures.pop("ms.median"), "51.50 ms")
        self.assertEqual([figures.pop("ms.low"), figures.pop("ms.high")], ["50.00", "53.00"])
        self.assertEqual(set(figures.values()), {"–"})
        self.assertEqual(self.find_all("canvas"), [])
        self.assertIn("This host wrote no timeline.", self.find("#cards").text)
        self.assertEqual(len(self.find_all("#charts .dot")), 2)

    def open_changed(self, change):
        """The page of `runs` with other data in it."""
        comparison = json.loads((self.folder / "runs.json").read_text())
        change(comparison)
        page = (self.folder / "runs.html").read_text()
        begin = page.index(">", page.index('id="comparison"')) + 1
        data = json.dumps(comparison).replace("<", "\\u003c")
        path = self.folder / "changed.html"
        path.write_text(page[:begin] + data + page[page.index("</script>", begin) :])
        self.open_page(path)

    def test_odd_comparisons(self):
        """Whatever is missing or odd is left out; tearDown sees to it that nothing is logged."""

        def only(*indices):
            return lambda comparison: comparison.update(runs=[comparison["runs"][index] for index in indices])

        def without_phases_and_memory(comparison):
            for rank in comparison["runs"][0]["measured"]["ranks"]:
                del rank["phases"], rank["memory"]

        def without_unit(comparison):
            comparison["runs"][0]["simulated"]["unit"] = None
            comparison["runs"][0]["simulated_ms"] = None

        def odd_spans(comparison):
            rank = comparison["runs"][0]["measured"]["ranks"][0]
            rank["spans"][:0] = [["0F0", 0, 0], ["0SEND_F0", 0, 0.0001], ["OPTIMIZER", 0.0001, 0.0002]]
            comparison["runs"][1]["measured"]["ranks"] = comparison["runs"][1]["measured"]["ranks"][:3]
            comparison["runs"][2]["measured"]["ranks"][1]["spans"] = []

        def without_figures(comparison):
            for run in comparison["runs"]:
                for key in list(run):
                    if key not in ("schedule", "failure"):
                        run[key] = None

        def bare(comparison):
            comparison["runs"] = [{"schedule": "a"}, {"schedule": "b", "failure": None}]
            for key in ("title", "command", "iterations", "rounds", "baseline"):
                comparison.pop(key)

        def all_failed(comparison):
            comparison["runs"] = [{"schedule": "a", "failure": "no"}, {"schedule": "b", "failure": "neither"}]

        cases = {
            "no runs": (lambda comparison: comparison.update(runs=[]), 0),
            "one": (only(3), 3),
            "failed": (all_failed, 0),
            "baseline failed": (only(4, 3, 2), 6),
            "no phases, no memory": (without_phases_and_memory, 12),
            "no unit": (without_unit, 12),
            "odd spans": (odd_spans, 12),
            "no figures": (without_figures, 0),
            "bare": (bare, 0),
            "not measured": (lambda comparison: comparison["runs"][0].update(measured=None), 10),
            "not simulated": (lambda comparison: comparison["runs"][0].update(simulated=None), 11),
        }
        for name, (change, canvases) in cases.items():
            with self.subTest(name):
                self.open_changed(change)
                self.assertEqual(len(self.find_all("canvas")), canvases)
                self.assertEqual(len(self.find_all("#charts .chart")), 3)
                self.assertEqual([e for e in self.browser.get_log("browser") if e["level"] == "SEVERE"], [])
        self.open_changed(without_phases_and_memory)
        self.assertIn("live (stage, micro-batch) counted from the actions", self.find("[data-block=memory]").text)
        self.open_changed(lambda comparison: comparison.update(notes=["A note."], mismatches=["builtin_1f1b differs"]))
        self.assertEqual(self.find("#notes").text, "A note.\nbuiltin_1f1b differs")

    def test_light_and_dark(self):
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            self.open("runs")
            text, page = (
                [int(n) for n in re.findall(r"\d+", self.run_js(f"return getComputedStyle(document.body).{key}"))[:3]]
                for key in ("color", "backgroundColor")
            )
            self.assertEqual(sum(page) < sum(text), scheme == "dark")
            self.assertGreater(abs(sum(page) - sum(text)), 450)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_paper(self):
        self.open("runs")
        shown = self.range_of("dualpipe")
        self.run_js("addEventListener('beforeprint', () => { document.body.dataset.printed = 'yes' })")
        pdf = base64.b64decode(self.browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
        self.assertTrue(pdf.startswith(b"%PDF"))
        self.assertGreater(len(pdf), 100_000)
        self.assertEqual(self.run_js("return document.body.dataset.printed"), "yes")
        self.assertIsNone(self.run_js("return document.documentElement.dataset.print ?? null"))
        self.assertEqual(self.range_of("dualpipe"), shown)


if __name__ == "__main__":
    run_tests()
