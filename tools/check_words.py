"""Print how often docstrings use words that cost a second reading, and fail above the limits.

``python tools/check_words.py`` counts in the package, ``--by-file PATH ...`` in each of these files or directories.
Docstrings are those of modules, classes and functions, and the strings after assignments.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "diode_lut"

LIMITS = {
    "what": (r"\bwhat\b", 1.0),
    "that, which": (r"\b(?:that|which)\b", 18.0),
    "one, ones": (r"\bones?\b", 5.0),
    "semicolons": (r";", 3.0),
}
"""For each word, its pattern and how often it may stand in 1,000 words."""


def main() -> int:
    """Print rates, and return 1 if the rate of all files is above a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[PACKAGE], help="files and directories (the package)")
    parser.add_argument("--by-file", action="store_true", help="print a line for each file")
    arguments = parser.parse_args()
    files = [file for path in arguments.paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    texts = {file: "\n".join(docstrings(file)) for file in files}
    if arguments.by_file:
        for file, text in texts.items():
            print(f"{line(text)}  {file}")
    everything = "\n".join(texts.values())
    print(f"{line(everything)}  all")
    above = [name for name, (_, limit) in LIMITS.items() if rates(everything)[name] > limit]
    if above:
        print("above the limit: " + "; ".join(f"{name} (at most {LIMITS[name][1]} in 1,000 words)" for name in above))
    return bool(above)


def docstrings(file: Path) -> Iterator[str]:
    """Yield the strings in a file that are statements, which are its docstrings."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def rates(text: str) -> dict[str, float]:
    """Return for each name in LIMITS how often it stands in 1,000 words of a text."""
    words = max(len(re.findall(r"\S+", text)), 1)
    return {name: 1000 * len(re.findall(word, text, re.IGNORECASE)) / words for name, (word, _) in LIMITS.items()}


def line(text: str) -> str:
    """Return the rates of a text as columns."""
    return "  ".join(f"{name} {rate:4.1f}" for name, rate in rates(text).items()) + f"  words {len(text.split()):6,}"


if __name__ == "__main__":
    sys.exit(main())
