"""The hook's way into Inductor, in fresh processes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diode_lut.hardware import detect_hardware
from tests.forks import Forks
from tests.sampled import sampled

ROOT = Path(__file__).parents[2]


def in_new_process(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)


SERVED = """
from torch._inductor.virtualized import V
assert type(V.choices).__mro__[0].__name__ == "DiodeChoices", V.choices
import threading
seen = []
thread = threading.Thread(target=lambda: seen.append(type(V.choices).__name__))
thread.start(); thread.join()
assert seen == ["DiodeChoices"], seen
from torch._inductor.select_algorithm import get_algorithm_selector_cache
assert get_algorithm_selector_cache().preprocessing_fns[-1].__module__.startswith("diode_lut.")
"""


ONCE = """
from diode_lut.hook.patches import filter_choices
assert get_algorithm_selector_cache().preprocessing_fns.count(filter_choices) == 1
"""


NO_CACHE = """
import diode_lut, torch._inductor.select_algorithm as select_algorithm
assert select_algorithm._ALGORITHM_SELECTOR_CACHE is None
select_algorithm.get_algorithm_selector_cache().add_preprocessing_fn(len)
select_algorithm.clear_preprocessing_fns(clear_defaults=False)
"""


@pytest.mark.slow
def test_diode_lut_imported_first() -> None:
    """The handler is ours in this thread and in new ones; and once only, after diode_lut has been loaded again.

    The cache of timings is not made by the import, which would initialise CUDA in PyTorch 2.11. Our function is in it
    once, also after the user's were removed.
    """
    again = f"import importlib; importlib.reload(diode_lut)\n{ONCE}\n{SERVED}"
    done = in_new_process(f"{NO_CACHE}\n{SERVED}\n{ONCE}\n{again}")
    assert done.returncode == 0, done.stderr
    assert "diode_lut" not in done.stderr


@pytest.mark.parametrize(
    ("before", "imports"),
    [
        pytest.param("after_torch", "import diode_lut", marks=pytest.mark.slow),
        ("after_torch", "import torch._inductor.config; import diode_lut"),
        ("after_inductor", "from torch._inductor.virtualized import V; V.choices; import diode_lut"),
    ],
)
def test_every_order_of_imports(before: str, imports: str, request: pytest.FixtureRequest) -> None:
    """The handler is ours in this thread and in new ones, whatever was imported or used first."""
    done = request.getfixturevalue(before).run("-c", f"{imports}\n{SERVED}")
    assert done.returncode == 0, done.stderr
    assert "diode_lut" not in done.stderr


def test_reload_changes_nothing(after_inductor: Forks) -> None:
    """Where diode_lut is loaded again, the hook is still there, and not twice."""
    again = f"import importlib; importlib.reload(diode_lut)\n{ONCE}\n{SERVED}"
    done = after_inductor.run("-c", f"import diode_lut, torch\n{SERVED}\n{again}")
    assert done.returncode == 0, done.stderr
    assert "diode_lut" not in done.stderr


def test_autoregister_can_be_switched_off(after_torch: Forks) -> None:
    """With DIODE_LUT_AUTOREGISTER=0 importing diode_lut changes nothing in Inductor."""
    program = "import diode_lut, torch._inductor.config as c; assert c.inductor_choices_class is None"
    done = after_torch.run("-c", program, DIODE_LUT_AUTOREGISTER="0")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("install", ["config.inductor_choices_class = Mine", "V.set_choices_handler(Mine())"])
def test_earlier_handlers_stay_below_ours(install: str, after_inductor: Forks) -> None:
    """A user's factory, or a handler that is set in this thread, keeps its overrides and its part of the cache key."""
    user = """
from torch._inductor.choices import InductorChoices
import torch._inductor.config as config
from torch._inductor.virtualized import V
class Mine(InductorChoices):
    def __init__(self): super().__init__(); self.answer = 42
    def uuid(self): return "mine"
"""
    check = """
import diode_lut, pickle
handler = V.choices
assert isinstance(handler, Mine) and type(handler).__name__ == "DiodeChoices" and handler.answer == 42
assert handler.uuid()[-1] == "mine"
copy = pickle.loads(pickle.dumps(handler))
assert isinstance(copy, Mine) and type(copy).__name__ == "DiodeChoices" and copy.answer == 42
"""
    done = after_inductor.run("-c", f"{user}\n{install}\n{check}")
    assert done.returncode == 0, done.stderr


COMPILE = """
import diode_lut, torch
a, b = torch.randn(4, 64, 128), torch.randn(4, 128, 96)
torch.testing.assert_close(torch.compile(torch.bmm)(a, b), torch.bmm(a, b))
"""

INDUCTOR = """
import torch._inductor.compile_fx, torch._inductor.kernel.bmm, torch._inductor.kernel.mm
from torch._inductor import choices, kernel_inputs, select_algorithm
from torch._inductor.codegen import cpp_bmm_template
hook = choices.InductorChoices
ask = hook.get_template_configs
"""


MOVED_ON = {
    "part of diode_lut missing": "import sys; sys.modules['orjson'] = None",
    "function missing": "from torch._inductor.ir import ConcatKernel as own; del own.can_realize_into_without_copy",
    "module missing": "import sys; sys.modules['torch._inductor.kernel_template_choice'] = None",
    "the hook's signature changed": "hook.get_template_configs = lambda self, *_, **more: ask(self, *_, **more)",
    "signature changed": "cpp_bmm_template.CppBmmTemplate.add_choices = lambda layout: None",
    "the question about padding changed": "from torch._inductor.fx_passes import pad_mm; pad_mm._should_pad = len",
    "method missing": "del kernel_inputs.KernelInputs.dtypes",
}
"""What happens to Inductor, or to us; the first three are noticed when Inductor is imported, the others later."""


@pytest.mark.parametrize(
    "trouble", sampled(MOVED_ON, "module missing", "part of diode_lut missing", "signature changed", "method missing")
)
def test_inductor_has_moved_on(
    trouble: str, after_inductor: Forks, tmp_path: Path, table_file: Callable[..., Path]
) -> None:
    """Where Inductor is not as it was, or part of diode_lut is missing, compiling goes on, with one warning."""
    row = {"op": "bmm", "configs": [{"template": "cpp_gemm"}]}
    hardware = {**detect_hardware("cpu")._asdict(), "aliases": []}
    environment = {
        "DIODE_LUT_TABLES": str(table_file("rows.json", row, hardware=hardware)),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = after_inductor.run("-c", f"{INDUCTOR}\n{MOVED_ON[trouble]}\n{COMPILE}", **environment)
    assert done.returncode == 0, done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if "diode_lut" in line]
    assert warning.startswith("diode_lut is off, and Inductor of torch ")


def test_factory_stays_itself(after_inductor: Forks) -> None:
    """A copy of the factory is the factory, without a look at any table. So is what its pickle becomes.

    The pickle, by which torch 2.11 keys its caches, changes when the answers do.
    """
    program = """
import copy, pickle, sys, diode_lut, torch._inductor.config
from diode_lut.hook.patches import FACTORY
assert copy.deepcopy(FACTORY) is FACTORY
assert "diode_lut.hook.snapshot" not in sys.modules
before = pickle.dumps(FACTORY)
with diode_lut.config.patch(policy="verify"):
    assert pickle.dumps(FACTORY) != before
assert pickle.dumps(FACTORY) == before
assert pickle.loads(before) is FACTORY
"""
    done = after_inductor.run("-c", program)
    assert done.returncode == 0, done.stderr


def test_repro_script_names_the_factory(after_torch: Forks) -> None:
    """What Inductor writes into its repro scripts for the hook can be run; torch 2.11 writes the factory's name."""
    named = "from diode_lut.hook import patches as i; assert getattr(i, i.FACTORY.__name__) is i.FACTORY"
    program = f"import diode_lut, torch, torch._inductor.config as c; exec(c.codegen_config()); {named}"
    done = after_torch.run("-c", program)
    assert done.returncode == 0, done.stderr


FORKED = """
import os, signal, diode_lut, torch._inductor.compile_fx
from torch._inductor.async_compile import AsyncCompile
torch._inductor.config.compile_threads = 2
assert AsyncCompile.submit(int).result() == 0
child = os.fork()
if child == 0:
    signal.alarm(30)
    assert AsyncCompile.submit(int).result() == 0
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_forked_process_has_threads_that_compile(after_inductor: Forks) -> None:
    """A process that is forked after Inductor has compiled C++ can compile C++ as well, and does not wait for ever."""
    done = after_inductor.run("-c", FORKED)
    assert done.returncode == 0, done.stderr
