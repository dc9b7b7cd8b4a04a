"""The picture of a report in docs/reviewing.md: the H200's table and datasets, at 1280 pixels, the pointer on a row.

Run it with ``python tools/draw_report.py`` after a change of the page or the table; it needs Debian's Chromium.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from browser import chromium, show
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from diode_lut.contribute.judge import datasets_beside
from diode_lut.table import read_table

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "tables" / "nvidia-h200.json"
PICTURE = ROOT / "docs" / "report.png"
WIDTH, HEIGHT = 1280, 940


def main() -> None:
    """Write the report, and take the picture."""
    sources = read_table(TABLE).provenance["datasets"]
    datasets = [each.path for digest, each in datasets_beside(TABLE).items() if digest in sources]
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory) / "report.html"
        subprocess.run([sys.executable, "-m", "diode_lut", "report", TABLE, *datasets, "-o", page], check=True)
        with chromium(Path(directory) / "profile") as browser:
            show(browser, page, width=WIDTH, height=HEIGHT)
            point_at_largest_row(browser)
            browser.save_screenshot(PICTURE)
    print(f"{PICTURE}: {PICTURE.stat().st_size} bytes")


def point_at_largest_row(browser: Chrome) -> None:
    """Wait until all is drawn, and move the pointer onto the largest rectangle that a Triton kernel has."""
    ready = "return document.querySelector('main').ariaBusy === 'false'"
    WebDriverWait(browser, 30).until(lambda page: page.execute_script(ready))
    colour = browser.execute_script(
        "return getComputedStyle(document.documentElement).getPropertyValue('--template-1')"
    )
    shapes = browser.find_elements(By.CSS_SELECTOR, f"#coverage .mark-rect path[fill='{colour}']")
    visible = [shape for shape in shapes if shape.rect["y"] + shape.rect["height"] < HEIGHT]
    largest = max(visible, key=lambda shape: shape.rect["width"] * shape.rect["height"])
    ActionChains(browser).move_to_element(largest).perform()


if __name__ == "__main__":
    main()
