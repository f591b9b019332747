"""`dualpipe draw` as an independent XML parser reads it: cells to scale, none over another, all text in the picture.

    draw_test.py PROGRAM REPOSITORY
"""

import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PROGRAM, REPOSITORY = sys.argv[1], Path(sys.argv[2])
SVG = "{http://www.w3.org/2000/svg}"
FILLS = {"f1", "f2", "b1", "b2", "i1", "i2", "w1", "w2"}
KINDS = {"F": "f", "B": "b", "I": "i", "W": "w"}
COST = "overlapped=2.25"


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, check=True, cwd=REPOSITORY, timeout=60).stdout


def picture(*arguments):
    return ElementTree.fromstring(run("draw", *arguments))


def rows(*arguments):
    lines = run("plan", *arguments, "--format", "csv").decode().splitlines()
    return [line.split(",") for line in lines]


def lanes(root):
    found = {}
    for group in root.iter(SVG + "g"):
        if group.get("id", "").startswith("rank"):
            found[int(group.get("id")[4:])] = group.findall(SVG + "g")
    return [found[rank] for rank in range(len(found))]


def cells(action):
    return [rect for rect in action.findall(SVG + "rect") if rect.get("class") in FILLS]


def edges(rect):
    left, width = float(rect.get("x")), float(rect.get("width"))
    return left, left + width


def times(action):
    name, span = action.find(SVG + "title").text.split(", ")
    start, end = span.split(" to ")
    return name, float(start), float(end)


def font_size(root, name):
    """Of the last rule for the class, as a browser applies it; that of all text where there is none."""
    size = 12.0
    for rule in root.find(SVG + "style").text.split("}"):
        selectors, _, body = rule.partition("{")
        if f".{name}" in selectors and "font-size:" in body:
            size = float(body.split("font-size:")[1].split("px")[0])
    return size


class Drawing(unittest.TestCase):
    def check_cells(self, *arguments):
        root, plan = picture(*arguments), rows(*[part for part in arguments if part not in ("--cost", COST)])
        drawn = lanes(root)
        self.assertEqual([len(lane) for lane in drawn], [len(row) for row in plan])
        lane_boxes = [rect for rect in root.iter(SVG + "rect") if rect.get("class") == "lane"]
        left, right = edges(lane_boxes[0])
        scale = (right - left) / max(times(lane[-1])[2] for lane in drawn)
        tops = []
        for rank, lane in enumerate(drawn):
            reached = left
            for action, planned in zip(lane, plan[rank], strict=True):
                name, start, end = times(action)
                parts = cells(action)
                ops = planned.removesuffix("OVERLAP_F_B").strip("()").split(";")
                self.assertEqual(name, " +".join(ops))
                self.assertEqual(len(parts), len(ops))
                for part, op in zip(parts, ops, strict=True):
                    kind = next(letter for letter in op if letter.isalpha())
                    self.assertEqual(part.get("class")[0], KINDS[kind])
                    self.assertGreaterEqual(edges(part)[0], reached - 0.011)
                    reached = edges(part)[1]
                self.assertAlmostEqual(edges(parts[0])[0], left + start * scale, delta=0.011)
                self.assertAlmostEqual(edges(parts[-1])[1] - edges(parts[0])[0], (end - start) * scale, delta=0.021)
                numbers = [text.text for text in action.findall(SVG + "text")]
                for number in numbers:
                    self.assertIn(number, ["".join(c if c.isdigit() else " " for c in op).split()[1] for op in ops])
            top = float(cells(lane[0])[0].get("y"))
            self.assertLessEqual(reached, right + 0.011)
            if tops:
                self.assertGreaterEqual(top, tops[-1] + float(cells(drawn[rank - 1][0])[0].get("height")) - 0.011)
            tops.append(top)
        return root

    def check_text(self, root):
        """All text lies inside the view box, by a generous width of its characters."""
        _, _, width, height = map(float, root.get("viewBox").split())
        for group, offset in [(root, (0.0, 0.0))] + [
            (key, tuple(map(float, key.get("transform")[len("translate(") : -1].split())))
            for key in root.findall(SVG + "g")
            if key.get("class") == "key"
        ]:
            for text in group.iter(SVG + "text") if offset != (0.0, 0.0) else group.findall(SVG + "text"):
                size = font_size(root, text.get("class"))
                length = 0.62 * size * len(text.text or "")
                x, y = float(text.get("x")) + offset[0], float(text.get("y")) + offset[1]
                anchored = {"rank": 1, "right": 1, "tick": 0.5}.get(text.get("class"), 0)
                self.assertGreaterEqual(x - anchored * length, 0, text.text)
                self.assertLessEqual(x + (1 - anchored) * length, width, text.text)
                self.assertGreaterEqual(y - size, 0, text.text)
                self.assertLessEqual(y + 0.3 * size, height, text.text)
        for action in (action for lane in lanes(root) for action in lane):
            for text in action.findall(SVG + "text"):
                boxes = [edges(rect) for rect in cells(action)]
                x = float(text.get("x"))
                self.assertTrue(any(start <= x <= end for start, end in boxes), text.text)

    def check_all(self, *arguments):
        root = self.check_cells(*arguments)
        self.check_text(root)
        return root

    def test_every_schedule(self):
        for name in ("1f1b", "interleaved_1f1b", "zb1p", "dualpipe", "dualpipev"):
            with self.subTest(name):
                self.check_all("-s", name, "-P", "4", "-M", "12", "--cost", COST)

    def test_from_one_to_many_ranks(self):
        for ranks in (1, 20, 64):
            with self.subTest(ranks):
                self.check_all("-s", "zb1p", "-P", str(ranks), "-M", str(2 * ranks))
        self.check_all("-s", "dualpipe", "-P", "64", "-M", "128", "--cost", COST)

    def test_numbers_can_be_read_or_are_left_out(self):
        for ranks in (8, 16, 32, 64, 128):
            for cost in ("overlapped=3", COST):
                with self.subTest(ranks=ranks, cost=cost):
                    root = picture("-s", "dualpipe", "-P", str(ranks), "-M", str(2 * ranks), "--cost", cost)
                    actions = [action for lane in lanes(root) for action in lane]
                    numbers = sum(len(action.findall(SVG + "text")) for action in actions)
                    cells_drawn = sum(len(cells(action)) for action in actions)
                    if numbers:
                        self.assertGreaterEqual(font_size(root, "cell"), 7)
                    self.assertGreaterEqual(numbers, {8: 0.95, 64: 0.9}.get(ranks, 0) * cells_drawn)
                    self.assertLessEqual(float(root.get("width")), 1800 if ranks <= 32 else 4800)

    def test_other_widths(self):
        for width in ("480", "4000"):
            root = picture("-s", "dualpipe", "-P", "8", "-M", "20", "--width", width)
            self.assertEqual(root.get("width"), width)
            self.check_text(root)

    def test_a_file(self):
        root = self.check_all("-s", "tests/golden/dualpipe_r8_m20.csv")
        self.assertIn("tests/golden/dualpipe_r8_m20.csv, 8 ranks, 20 micro-batches", root.find(SVG + "title").text)

    def test_the_title_has_the_figures(self):
        root = picture("-s", "dualpipe", "-P", "8", "-M", "20")
        lines = [text.text for text in root.findall(SVG + "text")][:3]
        self.assertEqual(lines[0], "dualpipe, 8 ranks, 20 micro-batches")
        self.assertEqual(lines[1], "makespan 66; bubble 9.1% of the ranks' time, 9.1% on the worst rank")

    def test_pictures_of_the_readme_are_up_to_date(self):
        for name, ranks, num_microbatches in (("dualpipe", "8", "20"), ("dualpipev", "4", "10")):
            command = ["draw", "-s", name, "-P", ranks, "-M", num_microbatches, "--cost", COST]
            path = f"docs/{name}_r{ranks}_m{num_microbatches}.svg"
            self.assertEqual(
                run(*command), (REPOSITORY / path).read_bytes(), f"remake with: dualpipe {' '.join(command)} -o {path}"
            )
            self.assertIn(f"({path})", (REPOSITORY / "README.md").read_text())

    def test_mistakes(self):
        for arguments, message in (
            (["-s", "dualpipe", "-P", "4", "-M", "6"], "[dualpipe] num_microbatches must be at least"),
            (["-s", "dualpipe", "-P", "4"], "[draw] --num-microbatches is required with --schedule dualpipe"),
            (["-s", "1f1b", "-P", "2", "-M", "2", "--width", "10"], "--width"),
            (["-s", "1f1b", "-P", "2", "-M", "2", "-o", "/nonexistent/a.svg"], "[output] cannot write"),
            (["-s", "1f1b", "-P", "512", "-M", "512"], "[picture] a picture holds at most 200000 actions, got 524288"),
        ):
            result = subprocess.run([PROGRAM, "draw", *arguments], capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn(message, result.stderr)
            self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
