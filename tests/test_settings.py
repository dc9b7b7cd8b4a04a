"""Settings: defaults, the environment, validation."""

import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from diode_lut.errors import SettingError
from diode_lut.settings import Settings, autoregister, config
from tests.commands import started
from tests.interrupted import alarm_in

WRONG = [
    ("policy", "fast", "allowed: pick, verify, off"),
    ("policy", None, "allowed: pick, verify, off"),
    ("policy", ["pick"], "allowed: pick, verify, off"),
    ("default_mode", 1, "allowed: True or False"),
    ("fallback_to_autotune", "yes", "allowed: True or False"),
    ("top_k", 0, "allowed: an integer from 1 to 32"),
    ("top_k", 33, "allowed: an integer from 1 to 32"),
    ("top_k", True, "allowed: an integer from 1 to 32"),
    ("top_k", 2.0, "allowed: an integer from 1 to 32"),
    ("gain_threshold", -0.1, "allowed: a number that is not negative; inf for never"),
    ("gain_threshold", float("nan"), "allowed: a number that is not negative"),
    ("gain_threshold", True, "allowed: a number that is not negative"),
    ("tables", "a.json", "allowed: a list of table names and paths"),
    ("tables", [1], "allowed: a list of table names and paths"),
    ("tables", None, "allowed: a list of table names and paths"),
    ("tiers", "user", "allowed: a list of some of user, device, same_arch, chooser, model"),
    ("tiers", [], "allowed: a list of some of user, device, same_arch, chooser, model"),
    ("tiers", ["user", "abstain"], "allowed: a list of some of user, device, same_arch, chooser, model"),
]


def test_defaults() -> None:
    """Without an environment everything has the documented default."""
    settings = Settings({})
    assert (settings.policy, settings.default_mode, settings.top_k) == ("pick", True, 1)
    assert (settings.fallback_to_autotune, settings.tables) == (True, ())
    assert settings.tiers == ("user", "device", "same_arch", "chooser", "model")


def test_every_setting_is_declared_with_a_default() -> None:
    """The attributes that the class declares for readers and type checkers are the settings that exist."""
    assert list(get_type_hints(Settings)) == list(vars(Settings({})))


def test_environment() -> None:
    """Each setting is read from DIODE_LUT_<NAME>, lists separated as PATH is."""
    settings = Settings(
        {
            "DIODE_LUT_POLICY": "verify",
            "DIODE_LUT_DEFAULT_MODE": "0",
            "DIODE_LUT_TOP_K": "3",
            "DIODE_LUT_GAIN_THRESHOLD": "inf",
            "DIODE_LUT_FALLBACK_TO_AUTOTUNE": "False",
            "DIODE_LUT_TABLES": os.pathsep.join(["mine.json", "", "nvidia-h200"]),
            "DIODE_LUT_TIERS": os.pathsep.join(["model", "user"]),
        }
    )
    assert (settings.policy, settings.default_mode, settings.top_k) == ("verify", False, 3)
    assert settings.gain_threshold == float("inf")
    assert (settings.fallback_to_autotune, settings.tables) == (False, ("mine.json", "nvidia-h200"))
    assert settings.tiers == ("user", "model")


def test_an_empty_variable_counts_as_unset(caplog: pytest.LogCaptureFixture) -> None:
    """An empty value, as in ``-e DIODE_LUT_POLICY=``, changes nothing and costs no warning."""
    names = [f"DIODE_LUT_{name.upper()}" for name in vars(Settings({}))]
    assert vars(Settings(dict.fromkeys(names, ""))) == vars(Settings({}))
    assert not caplog.messages


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("DIODE_LUT_POLICY", "fast", "pick, verify, off"),
        ("DIODE_LUT_TOP_K", "many", "an integer from 1 to 32"),
        ("DIODE_LUT_TOP_K", "99", "an integer from 1 to 32"),
        ("DIODE_LUT_DEFAULT_MODE", "maybe", "0 or false"),
        ("DIODE_LUT_TIERS", "users", "user, device, same_arch, chooser, model"),
        ("DIODE_LUT_TIERS", os.pathsep, "user, device, same_arch, chooser, model"),
    ],
)
def test_bad_environment_warns_and_is_ignored(
    caplog: pytest.LogCaptureFixture, variable: str, text: str, allowed: str
) -> None:
    """A variable with a value that is not allowed costs one warning that names it, and the default is used."""
    with caplog.at_level(logging.WARNING, "diode_lut"):
        settings = Settings({variable: text})
    assert vars(settings) == vars(Settings({}))
    (message,) = caplog.messages
    assert message.startswith(f"{variable}: {text!r} is not allowed")
    assert allowed in message


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("DIODE_LUT_TABEL", "did you mean DIODE_LUT_TABLES?"),
        ("DIODE_LUT_RECIEPT", "did you mean DIODE_LUT_RECEIPT?"),
        ("DIODE_LUT_policy", "did you mean DIODE_LUT_POLICY?"),
        ("DIODE_LUT_FAST", "known: DIODE_LUT, DIODE_LUT_POLICY, DIODE_LUT_DEFAULT_MODE, "),
    ],
)
def test_unknown_variable_warns(caplog: pytest.LogCaptureFixture, variable: str, hint: str) -> None:
    """A variable that is none of a setting costs one warning, with the nearest name if there is one."""
    settings = Settings({variable: "1", "DIODE_LUT_TOP_K": "3", "DIODE": "1"})
    assert settings.top_k == 3
    (message,) = caplog.messages
    assert message.startswith(f"{variable}: there is no such setting ({hint}")


@pytest.mark.parametrize(("name", "value", "allowed"), WRONG)
def test_wrong_value(name: str, value: Any, allowed: str) -> None:
    """A value that is not allowed raises SettingError, which says what is, and changes nothing."""
    settings = Settings({})
    with pytest.raises(SettingError, match=rf"diode_lut\.config\.{name}: .* is not allowed") as raised:
        setattr(settings, name, value)
    assert allowed in str(raised.value)
    assert vars(settings) == vars(Settings({}))


def test_unknown_name() -> None:
    """A misspelt setting is an error that names the one that is meant, or all."""
    settings = Settings({})
    with pytest.raises(SettingError, match=r"polcy: there is no such setting \(did you mean policy\?\)"):
        settings.polcy = "off"
    with pytest.raises(SettingError, match=r"xyzzy: there is no such setting \(settings: policy, default_mode, "):
        settings.xyzzy = "off"
    with pytest.raises(SettingError, match="polcy"), settings.patch(polcy="off"):
        pass


def test_tables_become_a_tuple_of_strings() -> None:
    """Any list of strings and paths will do for ``tables``."""
    settings = Settings({})
    settings.tables = [Path("a.json"), "b"]  # type: ignore[assignment]
    assert settings.tables == ("a.json", "b")


def test_relative_paths_start_where_they_were_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files keep their places when the process goes elsewhere; names of tables that are no files stay names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").touch()
    settings = Settings({"DIODE_LUT_TABLES": f"mine.json{os.pathsep}h200", "DIODE_LUT_RECEIPT": "r.json"})
    assert settings.tables == (str(tmp_path / "mine.json"), "h200")
    assert settings.receipt == str(tmp_path / "r.json")


@pytest.mark.skipif(os.name != "posix", reason="a directory in use cannot be removed")
def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths of tables, which mean nothing there, are kept as they are, and absolute ones are used."""
    (gone := tmp_path / "gone").mkdir()
    (table := tmp_path / "mine.json").touch()
    monkeypatch.chdir(gone)
    gone.rmdir()
    settings = Settings({"DIODE_LUT_TABLES": f"mine.json{os.pathsep}{table}"})
    assert settings.tables == ("mine.json", str(table))


def test_tiers_are_in_their_order() -> None:
    """In whatever order and how often tiers are named, they are asked in the one order that there is."""
    settings = Settings({})
    settings.tiers = ["model", "device", "model"]  # type: ignore[assignment]
    assert settings.tiers == ("device", "model")


def test_patch_restores() -> None:
    """The values are back after the block, also after an exception, and also where patches nest."""
    settings = Settings({})
    with suppress(ZeroDivisionError), settings.patch(policy="off", top_k=4):
        with settings.patch(top_k=5):
            assert (settings.policy, settings.top_k) == ("off", 5)
        assert settings.top_k == 4
        raise ZeroDivisionError
    assert vars(settings) == vars(Settings({}))


def test_patch_is_all_or_nothing() -> None:
    """If one of several values is not allowed, none is set."""
    settings = Settings({})
    with pytest.raises(SettingError), settings.patch(policy="off", top_k=0):
        pass
    assert settings.policy == "pick"


@pytest.mark.parametrize(
    ("text", "armed"), [("0", False), ("false", False), ("1", True), (None, True), ("", True), ("no?", True)]
)
def test_autoregister(text: str | None, armed: bool) -> None:
    """Only a clear no keeps the hook from being armed."""
    assert autoregister({} if text is None else {"DIODE_LUT_AUTOREGISTER": text}) is armed


def test_overlapping_patches_in_threads() -> None:
    """Blocks that two threads enter and leave in any order leave nothing behind; the one entered last counts."""
    settings = Settings({})
    first, second = settings.patch(policy="off", top_k=2), settings.patch(policy="verify")
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(first.__enter__).result()
        other.submit(second.__enter__).result()
        assert (settings.policy, settings.top_k) == ("verify", 2)
        one.submit(first.__exit__, None, None, None).result()
        assert (settings.policy, settings.top_k) == ("verify", 1)
        other.submit(second.__exit__, None, None, None).result()
    assert vars(settings) == vars(Settings({}))


def test_assignment_within_patches() -> None:
    """What is assigned within a block ends with the last block entered that changes the setting; else it stays."""
    settings = Settings({})
    with settings.patch(policy="off"):
        with settings.patch(top_k=2):
            settings.policy, settings.top_k, settings.strict = "verify", 3, True
        assert (settings.policy, settings.top_k, settings.strict) == ("verify", 1, True)
    assert (settings.policy, settings.strict) == ("pick", True)


def test_a_copy_stays_as_it_is() -> None:
    """A copy has the values of its moment, patched ones too, whatever happens to the settings afterwards."""
    settings = Settings({})
    with settings.patch(policy="off"):
        copied = settings.copy()
    settings.top_k = 2
    assert vars(copied) == {**vars(Settings({})), "policy": "off"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_keeps_the_blocks_of_its_own_thread() -> None:
    """It is in those blocks that the thread was in which forked it, and in none of other threads."""
    with ThreadPoolExecutor(1) as other, config.patch(top_k=3):
        elsewhere = config.patch(policy="off")
        other.submit(elsewhere.__enter__).result()
        child = os.fork()
        if child == 0:
            os._exit(0 if (config.policy, config.top_k) == ("pick", 3) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert config.policy == "off"
        other.submit(elsewhere.__exit__, None, None, None).result()


@pytest.mark.parametrize("call", range(1, 12))
def test_interrupted_patch(call: int) -> None:
    """A signal handler that raises while a block begins or ends leaves the settings as they were before the block."""
    before = dict(vars(config))
    with suppress(TimeoutError), alarm_in("settings.py", call), config.patch(top_k=7):
        assert config.top_k == 7
    assert vars(config) == before


def test_a_relative_path_in_a_directory_that_is_gone(tmp_path: Path) -> None:
    """It is a warning at import, and an error where a program sets it: the program can be imported all the same."""
    program = (
        "import os; os.rmdir(os.getcwd())\n"
        "import diode_lut; print(diode_lut.config.receipt)\n"
        "try: diode_lut.config.receipt = 'mine.json'\n"
        "except ValueError as error: print(error)"
    )
    (tmp_path / "gone").mkdir()
    with started(sys.executable, "-c", program, cwd=tmp_path / "gone", DIODE_LUT_RECEIPT="mine.json") as process:
        out, err = process.communicate()
    assert out.splitlines()[0] == "None"
    assert "diode_lut.config.receipt: 'mine.json' is not allowed (allowed: a path, not a relative one in" in out
    assert err.startswith("DIODE_LUT_RECEIPT: 'mine.json' is not allowed")
