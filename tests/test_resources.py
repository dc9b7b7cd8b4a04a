"""Where the shipped data is found."""

from pathlib import Path

import pytest

import diode_lut
from diode_lut import files as resources
from diode_lut.decide.catalog import find_tables, shipped_paths

ROOT = Path(diode_lut.__file__).parent.parent
PRINT_DIGEST = "from diode_lut.process import code_digest; print(code_digest())"


def test_in_this_installation() -> None:
    """The tables and the schema that belong to this code are where it looks for them."""
    assert resources.tables_directory().is_dir()
    assert (resources.schemas_directory() / "table.v2.schema.json").is_file()


def test_who_has_no_home_has_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know, without HOME, has no directory of tables, and none is looked for."""

    def getpwuid(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", getpwuid)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    for home in (None, "relative"):
        monkeypatch.setenv("HOME", home) if home else monkeypatch.delenv("HOME")
        assert resources.own_tables_directory() is None
        assert [str(file.path) for file in find_tables(())] == shipped_paths()
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    assert resources.own_tables_directory() == Path("/config/diode_lut/tables")


def test_checkout_and_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data lies next to the package in a checkout, and inside it once installed."""
    package = tmp_path / "diode_lut"
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resources.tables_directory() == tmp_path / "tables"
    (package / "tables").mkdir(parents=True)
    assert resources.tables_directory() == package / "tables"
    assert resources.schemas_directory() == tmp_path / "schemas"
