"""``doctor``: checks whether diode_lut works in this process and in programs that start with its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from diode_lut.decide import catalog
from diode_lut.decide.choosers import registered
from diode_lut.decide.sources import shown
from diode_lut.errors import BROKEN_IMPORT, ModelError, TableError, as_command, install_command, printable
from diode_lut.files import require_writable
from diode_lut.hardware import Hardware, detect_hardware, local_devices
from diode_lut.hook.versions import NEWEST, OLDEST, release
from diode_lut.probe import replaced_libraries
from diode_lut.problem import Problem
from diode_lut.settings import Settings, autoregister, config, faults_in_environment


class Finding(NamedTuple):
    """A finding. Only with the state ``wrong``, which may keep tables from being used, it has a remedy."""

    state: str
    topic: str
    text: str
    remedy: str = ""


fine, note, wrong = (partial(Finding, state) for state in ("ok", "note", "wrong"))  # a note may be intended


def software() -> Iterator[Finding]:
    """Check PyTorch and Triton."""
    try:
        import torch
    except BROKEN_IMPORT as error:
        remedy = f"{install_command('torch')}; tables can be read, checked, edited and built without it"
        yield wrong("torch", f"cannot be imported ({error}), so there is nothing to hook into", remedy)
        return
    if OLDEST <= release() <= NEWEST:
        yield fine("torch", torch.__version__)
    else:
        known = " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
        yield wrong("torch", f"{torch.__version__} is not supported by the hook", f"install torch {known}")
    if find_spec("triton"):
        try:
            yield fine("triton", str(import_module("triton").__version__))
        except BROKEN_IMPORT as error:
            yield wrong("triton", f"cannot be imported ({error})", "install it again, or remove it")
    elif torch.cuda.is_available():
        yield wrong("triton", "is not installed, so Triton kernels cannot be compiled", "pip install triton")
    else:
        yield note("triton", "is not installed; it is not needed on a CPU")
    from diode_lut.hook import quack

    if quack.versions():
        try:
            yield fine("quack", f"{quack.versions()[0]}, for Hopper GPUs; its kernels call {quack.runtime()}")
        except FileNotFoundError as error:
            yield wrong("quack", f"its kernels need {error}", "pip install 'quack-kernels[cu13]'")


def hook() -> Iterator[Finding]:
    """Check whether Inductor asks the hook, and the keys of Inductor's caches."""
    if sys.modules.get("torch") is None:  # software() has tried
        return
    if not autoregister():
        yield wrong("hook", "is switched off by DIODE_LUT_AUTOREGISTER", "unset DIODE_LUT_AUTOREGISTER")
        return

    try:
        from diode_lut.hook import patches, switch

        missing = patches.what_is_missing()
    except BROKEN_IMPORT as error:
        yield wrong("hook", f"Inductor cannot be imported ({error})", "install torch and triton again")
        return
    if missing:
        remedy = "see the warnings above: the hook could not be installed in this Inductor"
        yield wrong("hook", "; ".join(missing), remedy)
        return
    below = patches.below()
    yield fine("hook", "is installed, and first in line" + (f", before {below}" if below else ""))
    fault = switch.cache_fault()
    if fault:
        remedy = "set TORCHINDUCTOR_FORCE_DISABLE_CACHES=1, and report this with the version of torch"
        yield wrong("caches", fault, remedy)
    else:
        yield fine("caches", "the keys of Inductor's caches change with the answers, and only then")


_LIBRARIES = "pip install --force-reinstall numpy safetensors"


def speed() -> Iterator[Finding]:
    """Find what costs speed on a GPU, whichever kernels are chosen."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return
    replaced = replaced_libraries()
    if replaced:
        lost = "cuDNN attention, the fastest on a Hopper GPU, may be missing; unset LD_LIBRARY_PATH"
        yield note("speed", f"LD_LIBRARY_PATH replaces libraries of PyTorch ({', '.join(replaced)}): {lost}")
    if torch.backends.cuda.matmul.fp32_precision != "tf32":
        high = 'torch.set_float32_matmul_precision("high") lets them use TF32, with errors of about 1e-3'
        yield note("speed", f"float32 matmuls use no tensor cores; {high}")
    for name in ("flash", "mem_efficient", "cudnn"):
        if not getattr(torch.backends.cuda, f"{name}_sdp_enabled")():
            yield note("speed", f"torch.backends.cuda.enable_{name}_sdp(False) leaves attention one kernel less")


def own_settings() -> Iterator[Finding]:
    """Check for settings this process has made itself."""
    from_environment = vars(Settings())
    for name, value in vars(config).items():
        if value != from_environment[name] and name != "receipt":  # commands switch it off
            yield note("settings", f"{name}={value!r}, set in this process")


def environment() -> Iterator[Finding]:
    """Check the environment of a program: settings, variables without an effect, and threads."""
    value = os.environ.get("DIODE_LUT", "")  # the line in diode_lut.pth reads it
    if value.lower() in ("", "0", "false", "no", "off"):
        text = "a program is served as soon as it imports diode_lut, under `run`, or with DIODE_LUT=1"
        yield fine("import", f"{text}; other variables alone change nothing")
    elif any(Path(directory, "diode_lut.pth").is_file() for directory in sys.path):
        yield fine("import", f"DIODE_LUT={value}: programs of this Python are served without an import")
    else:
        remedy = "install diode_lut with pip, or start the program with: python -m diode_lut run -- PROGRAM"
        yield wrong("import", f"DIODE_LUT={value} has no effect, because this Python has no diode_lut.pth", remedy)
    for fault in faults_in_environment():
        yield wrong("settings", fault, "correct the variable, or unset it")
    defaults = vars(Settings({}))
    for name, value in vars(Settings()).items():
        if value != defaults[name]:
            yield note("settings", f"{name}={value!r}, set by DIODE_LUT_{name.upper()} (default: {defaults[name]!r})")
    try:
        if receipt := Settings().receipt:
            require_writable(Path(receipt))
    except OSError as error:
        yield wrong("settings", f"DIODE_LUT_RECEIPT={receipt}: {error.strerror}", "name a file that can be written")
    if sys.modules.get("torch") is None:
        return
    threads = detect_hardware("cpu").sm_count  # on a CPU it decides which tables are asked
    variable = next((name for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ), None)
    if variable is not None:
        yield note("threads", f"{variable}={os.environ[variable]}; on a CPU, tables for that many threads are asked")
    elif threads > 1 and any(
        each.hardware.is_cpu for each in catalog.find_tables(config.tables) if not catalog.is_model(each.path)
    ):
        rank = "torchrun gives each rank one thread unless OMP_NUM_THREADS is set"
        yield note("threads", f"{threads}; {rank}, and then other tables are asked on a CPU")


def devices() -> Iterator[Finding]:
    """Check the devices of this machine, and the tables and models for them."""
    if sys.modules.get("torch") is None:  # software() has tried
        return
    found = list(dict.fromkeys(detect_hardware(name) for name in local_devices()))
    main = detect_hardware()
    for hardware in found:
        yield fine("device", str(hardware))
        tiers = catalog.tiers_for(hardware, config.tables, config.tiers, registered())
        problem = Problem.of("mm", 1024, 1024, 1024, dtype="float32", layout="nt")
        for chooser in registered():  # functions of the user's that fail on an ordinary problem
            reason = chooser.ask(problem, hardware).reason
            if chooser.faulty:
                yield wrong("answers", f"chooser {chooser.name}: {reason}, for {problem}", "correct the function")
        sources = [(tier.name, source) for tier in tiers for source in tier.sources]
        for tier_name, source in sources:
            name = shown(source.path) if source.path else source.name()
            yield fine("answers", f"{tier_name}: {name}, {source.description()}")
        reasons = "; ".join(f"{tier.name}: {reason}" for tier in tiers for reason in tier.left_out)
        reasons = reasons.replace(str(hardware), "it")
        if not sources and hardware == main:
            remedy = (
                "build a table of your program's GEMMs: python -m diode_lut tune -- PROGRAM; or one for many models: "
                "python -m diode_lut adopt --help"
            )
            yield wrong("answers", f"no table and no model is for this machine: {reasons}", remedy)
        elif reasons:
            yield note("answers", reasons)
    yield from unusable(found)


def unusable(found: list[Hardware]) -> Iterator[Finding]:
    """Find files for no device of this machine, and files with faults."""
    for name in config.tables:
        yield from _faults(name, check(Path(name)), "correct DIODE_LUT_TABLES")
    for path in catalog.own_paths():
        yield from _faults(path, check(Path(path)), "remove it")
    remedy = "install diode_lut again to restore it, or remove it"
    for path in catalog.shipped_paths():
        yield from _faults(path, remedy, remedy)
    for reason in catalog.distrusted():
        remedy = "correct its owner and permissions, or name it in DIODE_LUT_TABLES"
        yield wrong("tables", f"left out: {reason}", remedy)
    elsewhere: dict[str, list[str]] = {}
    for file in catalog.find_tables(config.tables):
        for_this_machine = any(file.hardware.same_arch(hardware) for hardware in found)
        if not for_this_machine and not (file.named and catalog.is_model(file.path)):
            if not file.named:
                elsewhere.setdefault(str(file.hardware), []).append(printable(file.path.name))
                continue
            text = f"{shown(file.path)} is for {file.hardware}, which this machine does not have"
            remedy = "remove it from DIODE_LUT_TABLES, or measure on this machine"
            yield wrong("tables", f"{text}: {file.hardware.why_none_of(found)}", remedy)
    if elsewhere:
        files = "; ".join(f"{hardware}: {', '.join(paths)}" for hardware, paths in elsewhere.items())
        yield note("tables", f"for devices that this machine does not have: {files}")


def check(path: Path) -> str:
    """Return the command to find the faults of a file."""
    return as_command("python", "-m", "diode_lut", "check", path)


def _faults(name: str, if_bad: str, if_unreadable: str) -> Iterator[Finding]:
    """Check a table or model. ``if_unreadable`` is the remedy for an OSError, ``if_bad`` for other errors."""
    try:
        path = catalog.find_path(name)
        if catalog.is_model(path):
            catalog.open_model(path)
            return
        faults = len(catalog.open_table(path).errors)
    except (TableError, ModelError) as error:
        cause = error.__cause__
        remedy = if_unreadable if isinstance(cause, OSError) else if_bad
        yield wrong("tables", str(error), _LIBRARIES if isinstance(cause, ImportError) else remedy)
        return
    if faults:
        yield wrong("tables", f"{shown(path)}: {faults} of its rows cannot be used", if_bad)


THIS_PROCESS, A_PROGRAM = "this process", "a program with this environment"

_CHECKS: dict[str, tuple[Callable[[], Iterator[Finding]], ...]] = {
    THIS_PROCESS: (software, hook, speed, own_settings, devices),
    A_PROGRAM: (environment,),
}
"""The subjects of the checks, and the checks in order."""


def examine() -> Iterator[tuple[str, Iterator[Finding]]]:
    """Yield all findings on this process, and then on a program started with its environment."""
    for subject, checks in _CHECKS.items():
        yield subject, chain.from_iterable(check() for check in checks)
