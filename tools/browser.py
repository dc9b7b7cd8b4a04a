"""Debian's Chromium without a screen, for pictures of reports and for their tests."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

FLAGS = (
    "--headless",
    "--no-sandbox",  # continuous integration is root
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def installed() -> bool:
    """Whether there is a Chromium, and the program that drives it."""
    return all(map(shutil.which, ("chromium", "chromedriver")))


@contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    """A browser with an empty profile in the directory, which notes what pages write to the console."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = Chrome(options, ChromeService(shutil.which("chromedriver") or ""))
    try:
        yield browser
    finally:
        browser.quit()


def show(browser: Chrome, page: Path, *, width: int, height: int, scheme: str = "light") -> None:
    """Load the page in a window of this size in CSS pixels, in the colour scheme ``light`` or ``dark``."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(page.resolve().as_uri())
