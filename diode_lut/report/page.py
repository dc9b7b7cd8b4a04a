"""The page: one HTML file that needs nothing else. vl-convert-python is needed, the optional extra ``report``.

What comes from the table is data: JSON that the program of the page reads and shows as text. The page's policy lets
only its own two scripts run, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import orjson
import vl_convert

_ASSETS = Path(__file__).parent / "assets"

_PROGRAM = ("words", "filters", "colours", "view", "coverage", "charts", "details", "rows", "main")
"""The parts of the page's program, in their order."""


def as_page(data: Mapping[str, Any]) -> str:
    """The HTML of the page that shows what ``as_data`` gave."""
    program = "\n".join(_asset(f"{name}.js") for name in _PROGRAM)
    return Template(_asset("page.html")).substitute(
        title=escape(str(data["name"])),
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in (_library(), program)),
        style=_asset("style.css"),
        data=orjson.dumps(data).decode().replace("<", r"\u003c"),  # no note ends the script that holds it
        library=_library(),
        program=program,
    )


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed, as the global name ``vegaEmbed``."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
