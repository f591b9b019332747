"""The page of a comparison in a real browser, for tests: opened without a network, asked what it shows."""

import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    webdriver = None

# plugin/analysis/picture_style.cc: light and dark.
COLOURS = {
    "F": [(248, 181, 102), (191, 90, 10)],
    "B": [(124, 196, 127), (43, 116, 54)],
    "I": [(143, 216, 196), (23, 121, 106)],
    "W": [(211, 235, 171), (93, 122, 31)],
}
AXIS = 22  # Pixels above the first lane.


def first_program(*names):
    return next((path for path in map(shutil.which, names) if path), None)


BROWSER = first_program("chromium", "chromium-browser", "google-chrome")
DRIVER = first_program("chromedriver", "chromium.chromedriver")


def missing():
    needs = {"selenium (setup/requirements.txt)": webdriver, "chromium": BROWSER, "chromedriver": DRIVER}
    return [name for name, found in needs.items() if not found]


def open_browser():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--force-device-scale-factor=1",
        "--window-size=1400,1000",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    browser.set_page_load_timeout(60)
    browser.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    return browser


class PageTest(unittest.TestCase):
    """A browser per class. Whatever a test did, the page logged nothing and asked for nothing but itself."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.browser = open_browser()
        cls.addClassCleanup(cls.browser.quit)

    def open_page(self, path):
        """Loads and draws it."""
        self.browser.get(path.as_uri())
        self.ready()

    def tearDown(self):
        self.assertEqual(self.browser.get_log("browser"), [])
        for entry in self.browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.assertRegex(message["params"]["request"]["url"], r"^(file|data|blob|about|chrome):")

    def run_js(self, text, *arguments):
        return self.browser.execute_script(text, *arguments)

    def ready(self):
        """Two frames later everything that waits for a frame is drawn."""
        self.browser.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)))"
        )

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def strip(self, schedule, kind):
        """The canvas, scrolled to where it is drawn."""
        canvas = self.find(f"[data-schedule='{schedule}'] canvas[data-strip={kind}]")
        self.run_js("arguments[0].scrollIntoView({block: 'center'})", canvas)
        WebDriverWait(self.browser, 20).until(lambda _: self.run_js("return arguments[0].dataset.phases", canvas))
        self.ready()
        return canvas

    def pixels(self, canvas, points):
        return self.run_js(
            "const [canvas, points] = arguments;"
            "const copy = new OffscreenCanvas(canvas.width, canvas.height);"
            "const pen = copy.getContext('2d', {willReadFrequently: true});"
            "pen.drawImage(canvas, 0, 0);"
            "return points.map(([x, y]) => [...pen.getImageData(x, y, 1, 1).data.slice(0, 3)])",
            canvas,
            points,
        )

    def lane_row(self, canvas, lane, lanes):
        """A row of pixels inside the lane, in the part that has a colour alone."""
        pitch = (canvas.size["height"] - AXIS) / lanes
        return int(AXIS + lane * pitch + max(2, pitch * 0.13))

    def ranks_of(self, schedule, kind):
        """The ranks that have a lane, in the page's order."""
        labels = self.find_all(f"[data-schedule='{schedule}'] [data-block={kind}] .labels [data-rank]")
        self.assertTrue(all(label.is_displayed() for label in labels))
        return [int(label.get_attribute("data-rank")) for label in labels]


def run_tests():
    """The caller's tests; exits with 77, which ctest counts as skipped, where there is no browser, and says so."""
    if missing():
        print(f"skipped: no {', no '.join(missing())}; `setup/setup.sh` and `setup/setup.sh browser` install them")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
