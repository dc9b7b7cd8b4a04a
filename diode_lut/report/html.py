"""The page as one self-contained HTML file. Making it needs vl-convert-python, from the extra ``report``.

The page's Content-Security-Policy allows only its own two scripts, and no request.
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

_SCRIPTS = (
    *("words", "filters", "colours", "view", "coverage", "charts"),
    *("details", "model", "ask", "rows", "address", "main"),
)
"""Names of the files of the page's program, in loading order."""


def as_page(data: Mapping[str, Any]) -> str:
    """The HTML of the page for the result of ``as_data``."""
    program = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    return Template(_asset("page.html")).substitute(
        title=escape(" and ".join(data["tables"])),
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in (_library(), program)),
        style=_asset("style.css"),
        data=orjson.dumps(data).decode().replace("<", r"\u003c"),  # so that no note can end the script element
        library=_library(),
        program=program,
    )


@cache
def _library() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed, with the global name ``vegaEmbed``."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
