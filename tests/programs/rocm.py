"""Prints what Inductor makes of configs for an MI300X that is not there, and what Triton compiles, as JSON.

``python rocm.py DIRECTORY CASES``: CASES is a JSON map from names of functions below to lists of configs. Inductor
reads at import whether this is ROCm, so that a process is needed.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

torch.version.hip = "7.0.0"

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

import diode_lut  # noqa: E402
from diode_lut.hardware import detect_hardware  # noqa: E402
from diode_lut.hook.problems import config_of  # noqa: E402
from diode_lut.measure.gemm import make_operands  # noqa: E402
from diode_lut.measure.kernels import Kernel, lowering  # noqa: E402
from diode_lut.problem import Problem  # noqa: E402
from diode_lut.templates.config import Config  # noqa: E402
from tests.fake_cuda import MI300X, Input, Lowered, compile_triton, fake_cuda, lower  # noqa: E402

GFX942 = GPUTarget("hip", "gfx942", 64)


def gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))


FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Input]]] = {
    "mm": (torch.mm, [Input((512, 1024)), Input((1024, 2048))]),
    "odd K": (torch.mm, [Input((512, 1001)), Input((1001, 2048))]),
    "gelu": (gelu, [Input((512, 1024)), Input((2048, 1024)), Input((2048,))]),
    "bmm": (torch.bmm, [Input((4, 128, 64)), Input((4, 64, 256))]),
    "large batch": (torch.bmm, [Input((70000, 16, 32)), Input((70000, 32, 16))]),
}


def described(config: Config) -> str | None:
    """What the kernel that a collection would time is called."""
    op = "bmm" if config.template == "triton_bmm" else "mm"
    problem = Problem.of(op, 512, 2048, 1024, dtype="bfloat16", layout="nn")
    with lowering(torch.device("cuda", 0)) as inductor:
        kernel = inductor.for_problem(problem, config, make_operands(problem, "meta"))
    return str(config_of(kernel.caller)) if isinstance(kernel, Kernel) else None


def lowered(directory: Path, name: str, config: Config) -> Lowered:
    """What becomes of a function where a table has this config for everything."""
    hardware = detect_hardware()._asdict()
    table = {"schema_version": 2, "hardware": hardware, "provenance": {}, "entries": [{"configs": [config.to_json()]}]}
    path = directory / f"{name} {config}.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    function, inputs = FUNCTIONS[name]
    with diode_lut.config.patch(tables=(str(path),), tiers=("user",)):
        return lower(function, *inputs)


def made(directory: Path, name: str, config: Config) -> dict[str, Any]:
    """The kernels of a function, and what Triton needs for its GEMM."""
    found = lowered(directory, name, config)
    compiled = [compile_triton(kernel, directory, GFX942.arch) for kernel in found.triton_templates]
    return {
        "extern": found.extern,
        "templates": found.triton_templates,
        "kernels": len(found.triton_kernels),
        "shared": [kernel.metadata.shared for kernel in compiled],
        "described": described(config),
    }


def main(directory: str, cases: str) -> None:
    triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: GFX942))
    with fake_cuda(MI300X):
        found = {
            name: {text: made(Path(directory), name, Config.parse(text)) for text in configs}
            for name, configs in json.loads(cases).items()
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
