"""The page in a real browser."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, installed, show
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from diode_lut.api import explanation
from diode_lut.dataset import read_dataset
from diode_lut.errors import as_command
from diode_lut.measure.problems import random_problems
from diode_lut.problem import DTYPES, GEMMS, Problem
from diode_lut.receipts import Device, Hit, Miss, Receipt, receipt_bytes
from diode_lut.settings import config
from diode_lut.table import Table, decode_entry, read_table, write_table
from diode_lut.table.format import key_text
from tests.commands import call
from tests.report.measured import H200, KERNEL_ROWS, OTHER_ROWS, ROWS, write_dataset, write_other_dataset
from tests.test_pasted import WORDS

ROOT = Path(__file__).parent.parent.parent
TABLES = ROOT / "tables"
NOTE = str(ROWS[2]["note"])

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``mine.json`` and pages: ``page`` with timings, ``two`` with another table, and others."""
    made = tmp_path_factory.mktemp("report")
    write_table(Table(H200, map(decode_entry, ROWS)), made / "mine.json")
    timings = write_dataset(made / "timings.msgpack", H200)
    for arguments in (("-o", made / "bare.html"), (timings, "-o", made / "page.html")):
        assert call("report", made / "mine.json", *arguments).exit_code == 0
    names = "nvidia-h200-models", "padding/nvidia-h200-models", "few-rows/nvidia-h200", "few-rows/nvidia-h200-masked"
    measured = [TABLES / "datasets" / f"{name}.msgpack.zst" for name in names]
    assert call("report", TABLES / "nvidia-h200.json", *measured, "-o", made / "h200.html").exit_code == 0
    write_table(Table(H200, map(decode_entry, ROWS[:2])), made / "less.json")
    asked = Device(misses=Counter({Miss(Problem.of("bmm", 64, 64, 64, b=8, dtype="float16", layout="nn")): 7}))
    hit = Hit(Problem.of("mm", 64, 128, 64, dtype="float16", layout="nn"), "user", "0" * 64, "mm", ("aten",))
    asked.hits[hit] = 21
    (made / "receipt.json").write_bytes(receipt_bytes(Receipt(devices={H200: asked})))
    more = ("--beside", made / "less.json", "--receipt", made / "receipt.json", "-o", made / "two.html")
    assert call("report", made / "mine.json", timings, *more).exit_code == 0
    model = ("--beside", "nvidia-h200.mlp", "-o", made / "model.html")
    assert call("report", made / "mine.json", timings, *model).exit_code == 0
    with config.patch(confidence_threshold=1.0, gain_threshold=100.0):
        assert call("report", made / "mine.json", *model[:2], "-o", made / "unsure.html").exit_code == 0
    write_table(Table(H200, map(decode_entry, OTHER_ROWS)), made / "other.json")
    arguments = (write_other_dataset(made / "other.msgpack"), "-o", made / "other.html")
    assert call("report", made / "other.json", *arguments).exit_code == 0
    write_table(Table(H200, map(decode_entry, KERNEL_ROWS)), made / "kernels.json")
    assert call("report", made / "kernels.json", "-o", made / "kernels.html").exit_code == 0
    shutil.copy(made / "mine.json", made / "-x.json")
    assert call("report", made / "-x.json", "-o", made / "dash.html").exit_code == 0
    return made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Chromium; without it the tests are skipped, but fail in continuous integration."""
    if not installed():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium: install chromium and chromium-driver")
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


class Page:
    """An open report."""

    def __init__(self, browser: Chrome) -> None:
        self.browser = browser

    def settle(self) -> Page:
        """Wait until all charts are drawn."""
        drawn = "return document.querySelector('main').ariaBusy === 'false'"
        WebDriverWait(self.browser, 300, poll_frequency=0.02).until(lambda browser: browser.execute_script(drawn))
        return self

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def run(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(script, *arguments)

    def figures(self) -> dict[str, str]:
        """The figures above the charts, by name."""
        script = """return [...document.querySelectorAll('#figures div')].map(
            (figure) => [...figure.children].map((part) => part.textContent))"""
        return dict(self.run(script))

    def rows(self) -> list[str]:
        """The keys of the rows in the list."""
        return list(self.run("return [...document.querySelectorAll('#rows .key')].map((key) => key.textContent)"))

    def fill(self, name: str, value: str) -> None:
        """Type or choose a filter."""
        self.one(f"#filters [name={name}]").send_keys(value)
        self.settle()

    def ask(self, **values: str) -> str:
        """Type a GEMM, and give what the page says about it."""
        for name, value in values.items():
            field = self.one(f"#ask [name=ask-{name}]")
            if field.tag_name == "select":
                event = "new Event('input', {bubbles: true})"
                self.run(f"arguments[0].value = arguments[1]; arguments[0].dispatchEvent({event})", field, value)
            elif field.is_displayed():
                field.clear()
                field.send_keys(value)
        return self.one("#answer").text

    def ask_at_once(self, **values: str) -> str:
        """The same for a GEMM that is filled in at once: typing takes seconds on a page with thousands of rows."""
        script = """const form = document.getElementById('ask');
            for (const [name, value] of Object.entries(arguments[0])) form.elements[`ask-${name}`].value = value;
            form.dispatchEvent(new Event('input', {bubbles: true}));
            return document.getElementById('answer').innerText"""
        return str(self.run(script, values))

    def reset(self) -> None:
        """Reset the filters."""
        self.one("#all").click()
        self.settle()

    def choose(self, value: str) -> None:
        """Choose the colour or the panels of coverage."""
        self.one(value if value.startswith("[") else f"#options [value={value}]").click()
        self.settle()

    def shapes(self, chart: str, kind: str) -> list[WebElement]:
        """The shapes of a chart, of the kind ``rect`` or ``symbol``."""
        return self.all(f"#{chart} .mark-{kind}.role-mark path")

    def point_at(self, shape: WebElement) -> ActionChains:
        """Move the pointer onto a shape."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", shape)
        actions = ActionChains(self.browser).move_to_element(shape)
        actions.perform()
        return actions

    def details(self) -> str:
        """The text about the row under the pointer."""
        return self.one("#details").text

    def fits(self, width: int) -> bool:
        """Whether everything is within the width of the window, and no chart was shrunk for it."""
        script = """const right = (element) => element.getBoundingClientRect().right;
            const whole = (chart) => chart.getBoundingClientRect().left + Number(chart.getAttribute('width'));
            const all = (names, edge) => [...document.querySelectorAll(names)].map(edge);
            return [document.scrollingElement.scrollWidth, ...all('main table, main form, main p', right),
                ...all('main svg', whole)]"""
        return max(self.run(script)) <= width

    def smallest_letters(self) -> float:
        """The smallest size of any text, in pixels."""
        script = """return Math.min(...[...document.querySelectorAll('text, td, label, p')].map(
            (element) => parseFloat(getComputedStyle(element).fontSize)))"""
        return float(self.run(script))

    def complaints(self) -> list[str]:
        """The messages in the console."""
        return [entry["message"] for entry in self.browser.get_log("browser")]


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Chrome, directory: Path) -> Open:
    """A function that loads a page in a window and waits until it is drawn."""

    def load(name: str = "page.html", width: int = 1280, scheme: str = "light") -> Page:
        browser.get_log("browser")
        show(browser, directory / name, width=width, height=900, scheme=scheme)
        return Page(browser).settle()

    return load


@pytest.mark.parametrize("name", ["page.html", "bare.html", "two.html", "other.html"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_opens_and_fits(open_page: Open, name: str, width: int, scheme: str) -> None:
    """The page opens without messages and requests, all charts are drawn, and it fits into the window."""
    page = open_page(name, width, scheme)
    page.choose("regret")
    page.choose("k")
    assert page.complaints() == []
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    drawn = [bool(chart.find_elements(By.TAG_NAME, "svg")) for chart in page.all(".chart:not([hidden])")]
    assert drawn == [True, True, True, name != "bare.html", name != "bare.html"]
    assert page.fits(width)
    assert page.smallest_letters() >= 11


@pytest.mark.parametrize("width", [1280, 390])
def test_the_shipped_table(open_page: Open, width: int) -> None:
    """The page of the H200's table opens without messages and fits; all problems are covered, with low regret."""
    page = open_page("h200.html", width)
    assert page.complaints() == []
    assert page.fits(width)
    figures, rows = page.figures(), len(read_table(TABLES / "nvidia-h200.json").entries)
    assert (figures["rows"], figures["not covered"]) == (f"{rows:,} of {rows:,}", "0")
    assert figures["within 2 %"] == "99.9 %"


def test_figures_are_those_of_evaluate(open_page: Open) -> None:
    """The page's figures over all problems are those of evaluate."""
    gain = math.prod([1.3, 1.1, 1.0, 1.0, 1.5]) ** (1 / 5)
    possible = math.prod([1.3, 1.21, 1.0, 1.0, 1.5]) ** (1 / 5)
    assert open_page().figures() == {
        "rows": "3 of 3",
        "problems": "5 of 5",
        "not covered": "1",
        "gain over aten": f"{gain:.3f}",
        "gain possible": f"{possible:.3f}",
        "largest regret": "10.00 %",
        "within 2 %": "80.0 %",
        "within 5 %": "80.0 %",
    }
    hint = open_page().one("#figures-hint").text
    assert "The largest is of mm 256x256x512 float16" in hint
    assert hint.endswith("10.00 % longer with triton_mm 16x64x32 g8 s3 w4 than with triton_mm 64x64x32 g8 s3 w4.")


def test_filters(open_page: Open) -> None:
    """Filters apply to figures, list and charts; a field that a row leaves out matches all; a reset shows all rows."""
    page = open_page()
    for chosen, rows, problems in (
        ({"op": "addmm"}, 1, 1),
        ({"op": "bmm"}, 0, 1),
        ({"dtype": "float16"}, 2, 4),
        ({"layout": "nt"}, 1, 1),
        ({"m-low": "1025"}, 1, 1),
        ({"m-low": "64", "m-high": "64"}, 2, 2),
        ({"n-high": "256", "op": "mm"}, 2, 3),
        ({"k-low": "513"}, 2, 1),
        ({"layout": "nt", "m-high": "8"}, 0, 0),
        ({}, 3, 5),
    ):
        for name, value in chosen.items():
            page.fill(name, value)
        assert page.figures()["rows"] == f"{rows} of 3"
        assert page.figures()["problems"] == f"{problems} of 5"
        assert (len(page.rows()), len(page.shapes("gains", "symbol"))) == (rows, problems)
        page.reset()
    assert page.complaints() == []


def test_hovering_shows_the_row(open_page: Open, directory: Path) -> None:
    """The row under the pointer is shown with its figures and a link to its line; a click keeps it."""
    page = open_page()
    smaller = min(page.shapes("coverage", "rect"), key=lambda shape: shape.rect["width"])
    page.point_at(smaller)
    text = page.details()
    for expected in (
        "mm float16 nn m 64-256 n 64-256 k 1-512",
        "triton_mm 16x64x32 g8 s3 w4 1.300",
        "1.196",
        "4.88 % on average, 10.00 % at worst",
    ):
        assert expected in text
    href = page.one("#details a").get_attribute("href") or ""
    path, _, line = href.partition("#L")
    assert path == (directory / "mine.json").as_uri()
    assert '"m": [64, 256]' in (directory / "mine.json").read_text().splitlines()[int(line) - 1]
    ActionChains(page.browser).click().move_by_offset(0, -200).perform()
    page.point_at(page.shapes("gains", "symbol")[0])
    assert page.details().startswith(text)
    ActionChains(page.browser).send_keys(Keys.ESCAPE).perform()
    assert "Point at a shape" in page.details()


def test_the_smaller_row_lies_on_top(open_page: Open) -> None:
    """A row for any size fills the panel, and smaller rows lie on top of it."""
    page = open_page()
    shapes = sorted(page.shapes("coverage", "rect"), key=lambda shape: -shape.rect["width"])
    panel = page.all("#coverage .mark-group.role-scope .background")[0]
    assert shapes[0].rect["width"] == pytest.approx(panel.rect["width"], abs=4)
    assert shapes[0].rect["height"] == pytest.approx(panel.rect["height"], abs=4)
    page.run("arguments[0].scrollIntoView({block: 'center'})", panel)
    corner = int(panel.rect["width"] / 2 - 5), int(5 - panel.rect["height"] / 2)
    ActionChains(page.browser).move_to_element_with_offset(panel, *corner).perform()
    assert "mm nn" in page.details()


def test_exact_rows_and_misses_are_points(open_page: Open) -> None:
    """In coverage, an exact row is a point, and so is a miss, which is labelled as such."""
    page = open_page()
    said = []
    for shape in page.shapes("coverage", "symbol"):
        page.point_at(shape)
        said.append(page.details())
    assert len(said) == 2
    assert any("addmm bfloat16 nt align 16 m 1024 n 4096 k 1024" in text for text in said)
    assert any("bmm 8x64x64x64" in text and "no row covers it" in text for text in said)


def test_regret_shows_problems(open_page: Open) -> None:
    """Coloured by regret, coverage has a point per problem, with its choice and the best config."""
    page = open_page()
    page.choose("regret")
    said = []
    for shape in page.shapes("coverage", "symbol"):
        page.point_at(shape)
        said.append(page.details())
    assert len(said) == 5
    (worst,) = (text for text in said if "mm 256x256x512" in text)
    assert "triton_mm 16x64x32 g8 s3 w4" in worst
    assert "triton_mm 64x64x32 g8 s3 w4" in worst
    assert "10.00 %" in worst


def test_panels_for_each_k(open_page: Open) -> None:
    """A row is in the panels of all K that it covers; a filter on K shows only panels in its range."""
    page = open_page("bare.html")
    page.choose("k")
    assert len(page.shapes("coverage", "rect")) == 6 + 3
    page.fill("k-high", "64")
    assert len(page.shapes("coverage", "rect")) == 2


def test_a_bar_leads_to_its_part(open_page: Open) -> None:
    """A click on a bar filters for its op, type and layout."""
    page = open_page()
    longest = max(page.shapes("templates", "rect"), key=lambda shape: shape.rect["width"])
    page.point_at(longest).click().perform()
    page.settle()
    chosen = [page.one(f"[name={name}]").get_property("value") for name in ("op", "dtype", "layout")]
    assert chosen == ["mm", "float16", "nn"]
    assert page.figures()["rows"] == "2 of 3"


def test_notes_are_shown_as_text(open_page: Open) -> None:
    """HTML in a note is shown as text, in the list and in the details, and is not executed."""
    page = open_page()
    page.one("#rows td:has(.note) .key").click()
    assert NOTE in [fact.text for fact in page.all("#details dd")]
    assert [note.text for note in page.all("#rows .note")] == [NOTE]
    assert (page.browser.title, page.all("img"), page.all("b")) == ("mine.json", [], [])
    assert page.complaints() == []


def test_it_works_without_a_mouse(open_page: Open) -> None:
    """The keyboard is enough to filter, and to open and close a row, in a phone's width."""
    page = open_page(width=390)
    page.one("[name=op]").send_keys("addmm")
    page.settle()
    key = page.one("#rows .key")
    page.run("arguments[0].focus()", key)
    key.send_keys(Keys.ENTER)
    assert "addmm bfloat16 nt" in page.details()
    page.one("#details .close").send_keys(Keys.ENTER)
    assert not page.one("#details").is_displayed()


def test_sorting(open_page: Open) -> None:
    """The list can be sorted by regret, and by line again."""
    page = open_page()
    in_file = page.rows()
    page.one("#order").send_keys("regret")
    page.settle()
    assert page.rows()[0].startswith("mm float16")
    page.one("#order").send_keys("line")
    page.settle()
    assert page.rows() == in_file


def test_a_typed_gemm_is_answered(open_page: Open, directory: Path) -> None:
    """The row that answers is shown, with its kernel and the time: as measured, or scaled from the nearest."""
    page = open_page()
    assert "Type M, N and K" in page.one("#answer").text
    assert "sizes such as 4096 or 4k" in page.ask(m="256")
    measured = page.ask(op="mm", dtype="float16", layout="nn", n="256", k="512")
    for expected in ("mm float16 nn m 64-256 n 64-256 k 1-512", "triton_mm 16x64x32 g8 s3 w4", "0.110 µs, as measured"):
        assert expected in measured
    assert "about 0.0" in page.ask(m="128") or "µs, from mm" in page.one("#answer").text
    assert "mm nn" in page.ask(m="4k")
    assert "aten" in page.one("#answer").text
    assert "no row: a model, or Inductor, decides" in page.ask(op="bmm", b="7")
    said = page.one("#answer").text
    assert "diode-lut explain bmm 4096 256 512 --batch 7 --dtype float16 --layout nn --hardware" in said
    assert "sizes such as 4096 or 4k" in page.ask(m="x")
    page.ask(op="addmm", dtype="bfloat16", layout="nt", m="1k", n="4K", k="1_024")
    page.one("#answer button").click()
    assert "addmm bfloat16 nt align 16 m 1024 n 4096 k 1024" in page.details()
    assert page.complaints() == []


ATTENTION = {"op": "flex_attention", "dtype": "bfloat16", "variant": "causal", "m": "4k", "n": "4k", "k": "64"}


def test_typed_attention_is_answered(open_page: Open) -> None:
    """Heads, groups, the values' dimension and the variant decide which row answers; left out, sizes are 1 and K."""
    page = open_page("other.html")
    first, second, *_ = (key_text(decode_entry(row)) for row in OTHER_ROWS)
    assert first in page.ask(**ATTENTION, h="32", g="4")
    assert "1.250\nexpected\n80.0 µs, as measured" in page.one("#answer").text
    assert "about 40.0 µs, from flex_attention causal" in page.ask(m="2k")
    assert "no row" in page.ask(v="128")
    command = "flex_attention 2048 4096 64 --batch 1 --heads 32 --group 4 --value-dim 128 --dtype bfloat16 --layout nt"
    assert f"diode-lut explain {command} --variant causal --hardware" in page.one("#answer").text
    assert "G, the heads that share keys, divides H" in page.ask(h="30")
    assert second in page.ask(h="8", g="1")
    assert "no row" in page.ask(variant="full")
    assert "triton_flex_decoding 32 s2 w2" in page.ask(op="flex_decoding", m="1")
    assert page.complaints() == []


def test_form_has_what_the_op_has(open_page: Open) -> None:
    """Fields and values that the op does not have are not offered; a row for any op is for GEMMs only."""
    page = open_page("other.html")
    shown = """return [...document.querySelectorAll('#ask label')].filter((label) => !label.hidden).map(
        (label) => label.children[0].name)"""
    page.ask(**ATTENTION)
    attention = [f"ask-{name}" for name in ("op", "dtype", "layout", "variant", "b", "h", "g", "m", "n", "k", "v")]
    assert page.run(shown) == attention
    assert "aten" in page.ask(op="mm")
    assert page.run(shown) == [f"ask-{name}" for name in ("op", "dtype", "layout", "m", "n", "k")]
    said = page.ask(op="scaled_mm", variant="row-bfloat16-fast", m="64", n="512", k="512")
    assert "scaled_mm variant row-bfloat16-fast m 1-64" in said
    assert page.one("[name=ask-dtype]").get_property("value") == "float8_e4m3fn"
    offered = [option.text for option in page.all("[name=ask-layout] option") if option.is_enabled()]
    assert offered == ["nt"]


def test_attention_on_the_page(open_page: Open) -> None:
    """Gains are over default, each template has a colour, and the filter of variants leaves rows for others out."""
    page = open_page("other.html")
    assert page.figures()["gain over aten or default"] == f"{(1.25 * 2) ** (1 / 3):.3f}"
    assert page.one("#gains-title").text == "Gain over aten or default"
    assert "triton_flex_attention" in page.one("#legend").text
    fills = {shape.value_of_css_property("fill") for shape in page.shapes("templates", "rect")}
    assert len(fills) == 3
    panels = page.run("return [...document.querySelectorAll('#coverage text')].map((text) => text.textContent)")
    assert {"flex_attention bfloat16 nt", "flex_decoding bfloat16 nt"} <= set(panels)
    page.fill("variant", "causal")
    assert (page.figures()["rows"], page.figures()["problems"]) == ("3 of 5", "1 of 3")
    page.all("#rows .key")[0].click()
    assert key_text(decode_entry(OTHER_ROWS[0])) in page.details()
    assert page.complaints() == []


def test_generated_kernels_on_the_page(open_page: Open) -> None:
    """They have panels by their own sizes, and the form asks for these; a row for any op is not for them."""
    page = open_page("kernels.html", 390)
    assert page.fits(390)
    texts = "return [...document.querySelectorAll('#' + arguments[0] + ' text')].map((text) => text.textContent)"
    kernels, coverage = (set(page.run(texts, chart)) for chart in ("kernels", "coverage"))
    assert {"reduction inner", "pointwise flat", "pointwise tiled-x", "X", "R, Y or loads"} <= kernels
    assert "any op any type any layout" in coverage - kernels
    areas = [shape.rect for shape in page.shapes("kernels", "rect")]
    panels = [shape.rect for shape in page.all("#kernels .background") if shape.rect["height"] > 100]
    assert len(areas) == 3
    assert all(area["height"] < 0.7 * min(panel["height"] for panel in panels) for area in areas)
    assert "Type X and R" in page.ask(op="reduction", variant="inner")
    assert key_text(decode_entry(KERNEL_ROWS[0])) in page.ask(x="8k", r="384")
    assert "no row" in page.ask(r="4096")
    command = "diode-lut explain reduction --x 8192 --r 4096 --variant inner --hardware"
    assert command in page.one("#answer").text
    assert "pointwise x1024 w4" in page.ask(op="pointwise", variant="flat", x="64")
    shown = """return [...document.querySelectorAll('#ask label')].filter((label) => !label.hidden).map(
        (label) => label.children[0].name)"""
    assert page.run(shown) == [f"ask-{name}" for name in ("op", "variant", "x", "loads")]
    assert page.complaints() == []


@pytest.mark.parametrize("name", ["h200.html"])
def test_answers_are_those_of_the_table(open_page: Open, name: str) -> None:
    """On the shipped table, with thousands of rows, the page finds the row that lookup finds."""
    table = read_table(TABLES / "nvidia-h200.json")
    page = open_page(name)
    drawn = random_problems(6, seed=1, log_normal=True, ops=GEMMS, dtypes=DTYPES[:2], layouts=("nn", "nt"))
    measured = [record.problem for record in read_dataset(TABLES / "datasets" / "nvidia-h200-models.msgpack.zst")]
    for number, problem in enumerate((*drawn, *measured[::100])):
        sizes = {size: str(getattr(problem, size)) for size in ("m", "n", "k")}
        ask = page.ask_at_once if number else page.ask
        said = ask(op=problem.op, dtype=problem.dtype, layout=problem.layout, b=str(problem.b), **sizes)
        row = table.lookup(problem)
        assert (key_text(row) if row else "no row") in said


def test_the_address_keeps_what_is_chosen(open_page: Open, browser: Chrome) -> None:
    """Filters, colours, order and the GEMM are in the address; opened again, the page shows the same."""
    page = open_page()
    page.fill("op", "addmm")
    page.choose("gain")
    page.ask(m="64")
    address = browser.current_url
    assert {"op=addmm", "colour=gain", "ask-m=64"} <= set(address.partition("#")[2].split("&"))
    browser.get("about:blank")
    browser.get(address)
    page = Page(browser).settle()
    assert page.figures()["rows"] == "1 of 3"
    assert page.one("[value=gain]").is_selected()
    page.reset()
    assert "op=" not in browser.current_url.partition("#")[2].replace("ask-op=", "")


@pytest.mark.parametrize(
    ("name", "table"), [("page.html", "mine.json"), ("other.html", "other.json"), ("dash.html", "./-x.json")]
)
def test_a_row_is_copied_as_a_command(
    open_page: Open, name: str, table: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is copied is the set command that writes the row: it changes nothing."""
    monkeypatch.chdir(directory)
    page = open_page(name)
    for key in page.all("#rows .key"):
        key.click()
        words = shlex.split(page.one("#details .command").text)
        assert words[:3] == ["diode-lut", "set", table]
        shutil.copy(table, "copy.json")
        assert call("set", "copy.json", *words[3:]).exit_code == 0
        before, after = (read_table(Path(name)).entries for name in (table, "copy.json"))
        assert [(row.key, row.configs) for row in before] == [(row.key, row.configs) for row in after]
    button = page.one("#details button:not(.close)")
    button.click()
    said = ("Copied", "Select the command above to copy it")
    WebDriverWait(page.browser, 60).until(lambda _: button.text in said)  # the clipboard answers later


def test_a_command_has_words_as_python_quotes_them(open_page: Open) -> None:
    """The page and messages quote the words of a command alike."""
    words = [*WORDS[:-1], "", "\u202e'\\", "\x00\u3000é😀"]
    assets = ROOT / "diode_lut" / "report" / "assets"
    script = "\n".join((assets / name).read_text() for name in ("values.js", "details.js"))
    quoted = open_page("bare.html").run(f"{script}; return arguments[0].map(quoted)", words)
    assert quoted == list(map(as_command, words))


def test_two_tables_side_by_side(open_page: Open) -> None:
    """Each table has panels and figures of its own, both answer a typed GEMM, and charts show the one chosen."""
    page = open_page("two.html")
    assert (page.figures()["rows"], page.figures()["not covered"]) == ("3 of 3 | 2 of 2", "1 | 2")
    panels = page.run("""return [...document.querySelectorAll('#coverage text')].map(
        (text) => [...text.children].map((line) => line.textContent).join(' / '))""")
    assert {"mm float16 nn / mine.json", "mm float16 nn / less.json"} <= set(panels)
    said = page.ask(op="mm", dtype="float16", layout="nn", m="2048", n="64", k="64")
    assert re.search(r"mine.json\nanswered by\nmm nn\n(.|\n)*less.json\nanswered by\nno row", said)
    assert len(page.rows()) == 5
    page.choose("[name=of][value='1']")
    assert page.complaints() == []


def test_a_model_beside_the_table(open_page: Open) -> None:
    """A model has its choices on the measured problems; for all others the page names the command that asks it."""
    assert open_page("model.html", 390).fits(390)
    page = open_page("model.html")
    assert page.figures()["rows"] == "3 of 3 | 0 of 0"
    assert "this page has its answers for measured problems" in page.one("#answer").text
    assert re.search(r"mlp.safetensors\nkernel\n(.+)\nexpected", page.ask(dtype="float16", m="64", n="64", k="64"))
    assert "diode-lut explain mm 66 64 64 --dtype float16 --layout nn --table" in page.ask(m="66")
    page.choose("[name=of][value='1']")
    assert page.complaints() == []


def looked_up(said: str) -> tuple[str, str, str] | None:
    """The sizes, the kernel and the gain that the page has of a model; None without an answer."""
    found = re.search(r"answer for\n(.+)\nkernel\n(.+)\ngain\n(\S+) over aten.*: the model's estimate", said)
    return None if found is None else (found[1], found[2], found[3])


def test_a_model_answers_near_powers_of_two(open_page: Open) -> None:
    """At the sizes asked the page says what explain says; near them it names them; elsewhere it has no answer."""
    page = open_page("model.html")
    kind = {"op": "mm", "dtype": "float16", "layout": "nn"}
    for size in (8, 256, 2048):
        problem = Problem.of("mm", size, 4096, 512, dtype="float16", layout="nn")
        expected = explanation(problem, hardware=H200)
        decision = expected.models or expected.decision
        said = page.ask_at_once(**kind, m=str(size), n="4096", k="512")
        assert decision.expected_time is not None
        found = (
            str(decision.configs[0]) if decision.configs else "abstains",
            f"{1 / decision.expected_time:.3f}",
        )
        assert looked_up(said) == (f"{size} x 4096 x 512", *found)
    for typed, asked in (("2896", "2048"), ("2897", "4096")):
        sizes, *_ = looked_up(page.ask_at_once(**kind, m=typed, n="4k", k="520")) or ("",)
        assert sizes.startswith(f"{asked} x 4096 x 512, the nearest that the model was asked")
    for unlike in ({"m": "40k"}, {"k": "515"}, {"layout": "nt"}, {"n": "10"}):
        assert looked_up(page.ask_at_once(**{**kind, "m": "64", "n": "64", "k": "512", **unlike})) is None
    batched = {"op": "bmm", "m": "64", "n": "128", "k": "64"}
    sizes, *_ = looked_up(page.ask_at_once(**{**kind, **batched}, b="5")) or ("",)
    assert sizes.startswith("8 x 64 x 128 x 64, the nearest")
    assert page.complaints() == []


def test_a_model_abstains_near_powers_of_two(open_page: Open) -> None:
    """An abstention is shown as one, with the gain expected of its first config."""
    said = open_page("unsure.html").ask_at_once(op="mm", dtype="float16", layout="nn", m="256", n="256", k="256")
    _, kernel, gain = looked_up(said) or ("", "", "")
    assert (kernel, float(gain) > 0) == ("abstains", True)
    assert "of its first config, which it is not sure of" in said


def test_a_receipt_lies_on_the_map(open_page: Open) -> None:
    """What programs asked for is a diamond, with its calls, what answered then, and what would answer now."""
    page = open_page("two.html")
    assert (page.figures()["calls in receipts"], page.figures()["of them answered"]) == ("28", "75.0 % | 75.0 %")
    said = []
    for shape in page.shapes("coverage", "symbol"):
        page.point_at(shape)
        said.append(page.details())
    assert any("mm 64x128x64" in text and "21" in text and "answered by user" in text for text in said)
    assert any("bmm 8x64x64x64" in text and "missed" in text and "no answer" in text for text in said)
