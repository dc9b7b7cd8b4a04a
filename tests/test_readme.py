"""What README.md shows works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diode_lut.settings import _SETTINGS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = README.partition("## Five-minute tour\n")[2].partition("\n## ")[0]


@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq")
def test_tour_works_as_written(tmp_path: Path) -> None:
    """The tour's commands and its program run one after the other, and the table answers for the program's product."""
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", TOUR, flags=re.MULTILINE | re.DOTALL)
    script = "\n".join(f"python - <<'PROGRAM'\n{text}PROGRAM" if kind == "python" else text for kind, text in blocks)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "user: mine.json:" in completed.stdout
    assert re.search(r"total_predictions=1, hits=\{'user': 1, .*fallbacks=0", completed.stdout)


@pytest.mark.parametrize("name", [*_SETTINGS, "autoregister"])
def test_every_setting_is_explained(name: str) -> None:
    """Each setting has its line, with the environment variable."""
    assert f"| `DIODE_LUT_{name.upper()}` |" in README


def test_links_lead_somewhere() -> None:
    """Links to files of the repository are right, in all of its documents."""
    documents = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "tables" / "README.md")
    for document in documents:
        for target in re.findall(r"\]\(([^)]+)\)", document.read_text(encoding="utf-8")):
            assert target.startswith("https://") or document.parent.joinpath(target).exists(), target
