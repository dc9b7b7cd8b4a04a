"""Graphs that Inductor has compiled in a process of its own: which of them are in the caches."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diode_lut.hardware import detect_hardware
from tests.forks import Forks

ROOT = Path(__file__).parents[2]

FAULT = """
from diode_lut.process import when_imported
when_imported("torch._inductor.codegen.cpp_bmm_template", "fault:install")
import tests.startup.sitecustomize
"""
"""Runs when Python starts, before what would run without it, which the installed PyTorch may need."""

INSTALL_FAULT = """
import os
def install(module):
    template = module.CppBmmTemplate
    add_choices = template.add_choices
    def failing(*arguments, **named):
        if os.path.exists("full"):
            raise MemoryError
        return add_choices(*arguments, **named)
    template.add_choices = staticmethod(failing)
"""
"""While there is a file "full", an answer fails with an error that may not happen again."""

PROGRAM = """
import os, sys, torch, diode_lut
from torch._dynamo.utils import counters

def compile_for(rows):
    # A graph for each number, and the same C++ kernel in all
    torch._dynamo.reset()
    counters.clear()
    a, b = torch.randn(4, 64, 128), torch.randn(4, 128, 96)
    function = lambda a, b: torch.bmm(a, b)[:, :rows]
    torch.testing.assert_close(torch.compile(function)(a, b), function(a, b))
    found = {"hit": counters["aot_autograd"]["autograd_cache_hit"]}
    found["template"] = counters["inductor"]["cpp_templated_kernel_counter"]
    print(rows, *filter(found.get, found))

def turn_off():
    from diode_lut.hook import switch
    switch.turn_off(TypeError())
"""

ELSEWHERE = """
if __name__ == "__main__":
    from torch._inductor import compile_fx
    compile_fx.fx_compile_mode = compile_fx.FxCompileMode.SUBPROCESS
    from diode_lut.hook.switch import cache_identity
    diode_lut.config.tables = ("replaced.json",)
    cache_identity()
    os.replace("other.json", "replaced.json")
    compile_for(2)
    diode_lut.config.tables = ("kept.json",)
    open("full", "w").close()
    compile_for(3)
    os.remove("full")
    compile_for(4)
    turn_off()
    compile_for(5)
"""

HERE = """
_, table, *numbers = sys.argv
diode_lut.config.tables = (table,)
for rows in numbers:
    compile_for(int(rows))
turn_off()
compile_for(5)
"""


@pytest.mark.slow
def test_graphs_of_another_process_are_served_if_they_are_what_their_keys_stand_for(
    table_file: Callable[..., Path], tmp_path: Path, after_inductor: Forks
) -> None:
    """Not if that process read another table, or an answer failed there. Where the hook is off, it is off there."""
    hardware = {**detect_hardware("cpu")._asdict(), "aliases": []}
    for name, template in (("replaced", "cpp_gemm"), ("other", "aten"), ("kept", "cpp_gemm")):
        row = {"op": "bmm", "note": name, "configs": [{"template": template}]}
        table_file(f"{name}.json", row, hardware=hardware)
    first = (tmp_path / "replaced.json").read_bytes()
    for name, text in {
        "sitecustomize.py": FAULT,
        "fault.py": INSTALL_FAULT,
        "elsewhere.py": PROGRAM + ELSEWHERE,
        "here.py": PROGRAM + HERE,
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    def run(*arguments: str) -> list[str]:
        path = os.pathsep.join([str(ROOT), str(tmp_path), os.environ.get("PYTHONPATH", "")])
        cache = str(tmp_path / "cache")
        done = after_inductor.run(*arguments, cwd=tmp_path, PYTHONPATH=path, TORCHINDUCTOR_CACHE_DIR=cache)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert run("elsewhere.py") == ["2", "3", "4", "5"]
    (tmp_path / "replaced.json").write_bytes(first)
    assert run("here.py", "replaced.json", "2") == ["2 template", "5 hit"]
    found = run("here.py", "kept.json", "3", "4")
    assert found == ["3 template", "4 hit template", "5 hit"]
