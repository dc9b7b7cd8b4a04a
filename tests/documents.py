"""README.md and the pages of docs/, taken apart: sections by their anchors, and the blocks that can be run."""

import re
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
README = ROOT / "README.md"
COMMANDS_PAGE = ROOT / "docs" / "commands.md"

_FENCE = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]+) -->\n)?^(?P<margin> *)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=margin)```$",
    flags=re.MULTILINE | re.DOTALL,
)
_HEADING = re.compile(r"^(#+) (.+)$", flags=re.MULTILINE)


class Block(NamedTuple):
    """What stands between two fences: its language, empty for output, and a comment's mark in the line before."""

    kind: str
    text: str
    mark: str

    @property
    def left_out(self) -> bool:
        """Whether it is marked as one that is not run."""
        return self.mark.startswith("not run: ")

    @property
    def script(self) -> str:
        """The block as a part of a shell script; nothing if it is no command and no program, or not run."""
        if self.left_out or self.kind not in ("sh", "python"):
            return ""
        script = f"python - <<'PROGRAM'\n{self.text}PROGRAM\n" if self.kind == "python" else self.text
        return f"{{\n{script}}} || test $? = 1\n" if self.mark == "exits with 1" else script


def blocks(document: Path) -> list[Block]:
    """All blocks of a document, in order."""
    found = _FENCE.finditer(document.read_text(encoding="utf-8"))
    return [Block(each["kind"], dedent(each["text"]), each["mark"] or "") for each in found]


def sections(document: Path) -> dict[str, str]:
    """The text of each section, with those below it, by the anchor that its heading has on GitHub."""
    text = _FENCE.sub(lambda block: indent(block[0], " "), document.read_text(encoding="utf-8"))
    headings = list(_HEADING.finditer(text))
    found = {}
    for number, heading in enumerate(headings):
        following = (each.start() for each in headings[number + 1 :] if len(each[1]) <= len(heading[1]))
        found[_anchor(heading[2])] = text[heading.start() : next(following, len(text))]
    return found


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
