"""The list of all that is replaced in PyTorch, against PyTorch itself."""

from pathlib import Path

from diode_lut.hook.patches import PATCHES
from tests.documents import sections
from tests.forks import ROOT, Forks

FOUND = """
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType
import diode_lut, torch
from diode_lut.hook import patches
from torch._inductor import config
from torch._inductor.select_algorithm import get_algorithm_selector_cache
from torch._inductor.virtualized import V

PACKAGE = str(Path(diode_lut.__file__).parent)

def is_ours(value):
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    code = value.__code__.co_filename if isinstance(value, FunctionType) else ""
    return code.startswith(PACKAGE) or type(value).__module__.startswith("diode_lut.")

def replaced():
    '''The attributes of PyTorch's modules, classes and objects that are of this package.'''
    found = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch":
            for key, value in list(vars(module).items()):
                if is_ours(value):
                    found.add(f"{name}.{key}")
                kind = value if isinstance(value, type) else type(value)
                if vars(kind).get("__module__") == name and (kind is value or kind.__dictoffset__):
                    found.update(f"{name}.{key}.{part}" for part, each in list(vars(value).items()) if is_ours(each))
    return found

def registered():
    '''Which factories are ours, the handler of this thread, and the functions of ours that filter choices.'''
    factories = config.inductor_choices_class, config._config["inductor_choices_class"].default
    filters = [each for each in get_algorithm_selector_cache().preprocessing_fns if is_ours(each)]
    return [each is patches.FACTORY for each in factories], type(V.choices).__name__, filters

def listed(*during):
    return {str(each) for each in patches.PATCHES
            if each.during in during and not each.registers and patches.is_needed(each)}

for patch in patches.PATCHES:
    if patch.module.startswith("torch"):
        import_module(patch.module)
"""

IN_PROGRAMS = """
assert replaced() == listed("always"), replaced() ^ listed("always")
assert registered() == ([True, True], "DiodeChoices", [patches.filter_choices]), registered()
assert patches.what_is_missing() == []
patches.remove()
assert replaced() == set()
assert (registered()[0], registered()[2]) == ([False, False], [])
"""

WHILE_TRACED = """
assert replaced() == listed("always", "tracing"), replaced() ^ listed("always", "tracing")
"""

WHILE_RECORDED = """
assert replaced() == listed("always", "recording"), replaced() ^ listed("always", "recording")
"""

WHILE_MEASURING = """
from diode_lut.measure.autotune import _Observer
before = replaced(), registered()
with _Observer().attached():
    assert replaced() == listed("always", "measuring"), replaced() ^ listed("always", "measuring")
assert (replaced(), registered()) == before
"""


def test_all_that_is_replaced_is_listed(after_inductor: Forks) -> None:
    """In a program with the hook, the patches that are always in place are all there is, and can be undone."""
    done = after_inductor.run("-c", FOUND + IN_PROGRAMS)
    assert done.returncode == 0, done.stderr


def test_all_that_is_replaced_for_traces_is_listed(after_inductor: Forks, tmp_path: Path) -> None:
    """In a program that ``compare`` traces, the patches for that are in place as well."""
    done = after_inductor.run("-c", FOUND + WHILE_TRACED, _DIODE_LUT_PROBE=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_all_that_is_replaced_for_records_is_listed(after_inductor: Forks, tmp_path: Path) -> None:
    """In a program whose generated kernels ``tune`` records, the patch for that is in place as well."""
    done = after_inductor.run("-c", FOUND + WHILE_RECORDED, _DIODE_LUT_KERNELS=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_all_that_is_replaced_while_measuring_is_listed(after_inductor: Forks) -> None:
    """While Inductor's own choices are measured, the patches for that are in place, and afterwards none of them."""
    done = after_inductor.run("-c", FOUND + WHILE_MEASURING)
    assert done.returncode == 0, done.stderr


def test_the_document_has_the_list() -> None:
    """docs/hook.md names each patch, in the order of the list, below the programs that have it."""
    block = sections(ROOT / "docs" / "hook.md")["what-it-replaces-in-pytorch"].split("```")[1]
    lines = [line.strip() for line in block.strip().splitlines()[1:]]
    expected: list[str] = []
    for patch in PATCHES:
        if f"{patch.during}:" not in expected:
            expected.append(f"{patch.during}:")
        expected.append(f"{patch}{'  (up to PyTorch {}.{})'.format(*patch.until) if patch.until else ''}")
    assert lines == expected
