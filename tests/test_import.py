"""What ``import diode_lut`` does in a fresh process, and what it leaves alone."""

import os
import subprocess
import sys
from inspect import isfunction
from pathlib import Path

import pytest

import diode_lut

ROOT = Path(diode_lut.__file__).parent.parent
HEAVY = ("torch", "triton", "numpy", "orjson", "msgpack", "jsonschema", "jmespath", "click", "rich", "wrapt")


def run(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    completed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()


def test_import_is_light() -> None:
    """Importing the package imports none of its dependencies."""
    loaded = run(f"import sys, diode_lut; print([name for name in {HEAVY} if name in sys.modules])")
    assert loaded == "[]"


def test_tables_work_without_torch() -> None:
    """Selecting for hardware that is named imports neither torch nor numpy."""
    code = (
        "import sys, diode_lut; from diode_lut import Hardware, Problem;"
        "problem = Problem.of('mm', 8, 8, 8, dtype='float32', layout='nn');"
        "tier = diode_lut.select(problem, hardware=Hardware('No GPU of this name', 'sm_1', 1)).tier;"
        "print(tier, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    assert run(code) == "abstain False False"


def test_missing_torch_is_a_clear_error() -> None:
    """Where torch is not installed, asking for the device says what to do."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import diode_lut\n"
        "try: diode_lut.get_detected_hardware()\n"
        "except diode_lut.DiodeLutError as error: print(error)"
    )
    assert run(code).startswith("torch cannot be imported (")


def test_all_names_exist_and_are_documented() -> None:
    """Every public name can be imported, is listed by dir(), and has a docstring of its own."""
    assert sorted(diode_lut.__all__) == dir(diode_lut)
    undocumented = [name for name in diode_lut.__all__ if not getattr(diode_lut, name).__doc__]
    assert undocumented == []


def test_public_functions_are_in_one_module() -> None:
    """Who looks for what the package offers reads one module; what is no function is defined where it belongs."""
    functions = [value for value in (getattr(diode_lut, name) for name in diode_lut.__all__) if isfunction(value)]
    assert {function.__module__ for function in functions} == {"diode_lut.api"}
    assert {"register_chooser", "step"} <= {function.__name__ for function in functions}


def test_unknown_name() -> None:
    """A name that does not exist is an AttributeError, as in any module."""
    assert not hasattr(diode_lut, "no_such_name")


def test_functions_are_not_shadowed_by_modules() -> None:
    """Importing any module of the package leaves the public names what they are."""
    pytest.importorskip("torch")
    code = (
        "import diode_lut, pkgutil, importlib\n"
        "before = {name: getattr(diode_lut, name) for name in diode_lut.__all__}\n"
        "names = [module.name for module in pkgutil.iter_modules(diode_lut.__path__) if module.name != '__main__']\n"
        "for name in set(names) - {'inductor', 'collect'}: importlib.import_module(f'diode_lut.{name}')\n"
        "print(all(getattr(diode_lut, name) is value for name, value in before.items()), set(names) & set(before))"
    )
    assert run(code) == "True set()"


def test_hook_is_armed_for_inductor_only() -> None:
    """Importing the package arms one import hook, unless DIODE_LUT_AUTOREGISTER says no."""
    code = "import sys; before = len(sys.meta_path); import diode_lut; print(len(sys.meta_path) - before)"
    assert run(code, DIODE_LUT_AUTOREGISTER="1") == "1"
    assert run(code, DIODE_LUT_AUTOREGISTER="0") == "0"


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ("", ["diode_lut", "WARNING"]),
        ("logging.getLogger('diode_lut').setLevel('INFO')", ["diode_lut", "INFO", "diode_lut", "WARNING"]),
        ("logging.getLogger().setLevel('ERROR')", []),
    ],
)
def test_log_messages_are_not_in_those_of_the_program(before: str, shown: list[str]) -> None:
    """Whatever the program shows of its own, there is nothing of ours but warnings, unless somebody asked for it."""
    code = (
        "import logging, sys, diode_lut\n"
        "logging.basicConfig(level=1, stream=sys.stdout, format='%(name)s %(levelname)s')\n"
        f"{before}\n"
        "problem = diode_lut.Problem.of('mm', 8, 8, 8, dtype='float32', layout='nn')\n"
        "diode_lut.select(problem, hardware=diode_lut.Hardware('No GPU of this name', 'sm_1', 1))\n"
        "from diode_lut.log import warn_once\n"
        "warn_once('')\n"
    )
    assert run(code, DIODE_LUT_TABLES="").split() == shown


def test_log_messages_reach_stderr() -> None:
    """In a program that has set up no logging, what the user asks to see appears on stderr."""
    code = (
        "import sys, diode_lut; sys.stderr = sys.stdout\n"
        "diode_lut.set_log_level('info')\n"
        "problem = diode_lut.Problem.of('mm', 8, 8, 8, dtype='float32', layout='nn')\n"
        "diode_lut.select(problem, hardware=diode_lut.Hardware('No GPU of this name', 'sm_1', 1))"
    )
    assert run(code, DIODE_LUT_TABLES="") == "No GPU of this name (sm_1, 1 SMs): no tables"


def test_version_is_that_of_the_project() -> None:
    """The version in the code and that of the package are the same."""
    assert f'version = "{diode_lut.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
