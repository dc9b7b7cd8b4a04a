"""What vLLM's own code compiles a model to, as JSON for tests/hook/test_vllm.py.

``python serve_with_vllm.py DEVICE DIRECTORY TABLE RANGES``: vLLM's cache is in DIRECTORY. RANGES, in JSON, are the
sizes that it compiles on their own, and the ends of its ranges. "cuda" is the interpreter's device. Everything but the
model, its attention and the declarations of native operators is vLLM's: plugins, configuration, splitting, and caches.
"""

import inspect
import json
import os
import re
import sys
from contextlib import nullcontext
from typing import Any
from unittest import mock

from tests.interpreter.device import interpreter_cuda

SIZES = (16, 100, 5, 1)  # the numbers of tokens, in the order in which they are run

NATIVE = (
    "fused_add_rms_norm",
    "fused_add_rms_norm_static_fp8_quant",
    "fused_qk_norm_rope",
    "rms_norm",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_static_fp8_quant",
    "rotary_embedding",
    "silu_and_mul",
    "silu_and_mul_nvfp4_quant",
    "silu_and_mul_quant",
)
"""The operators that vLLM's passes look for in its native libraries."""

DECLARED: list[Any] = []  # what declares operators, for as long as it is there


def main(device: str, directory: str, table: str, ranges: str) -> dict[str, Any]:
    """How often Inductor compiled, whether the hook was armed, the largest error, and what each size ran.

    That is the BLOCK_M of each Triton template, and the number of calls of the library.
    """
    os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CACHE_ROOT": directory, "VLLM_PLUGINS": "diode_lut"}
    os.environ |= {"DIODE_LUT_TABLES": table, "DIODE_LUT_TIERS": "user"}
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    armed = "diode_lut" in sys.modules

    import torch
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch.profiler import ProfilerActivity, profile
    from vllm.compilation.counter import compilation_counter
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    declare_native_operators()
    blocks: list[int] = []
    launch = CachingAutotuner.run

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        blocks.extend(map(int, re.findall(r"BLOCK_M : tl.constexpr = (\d+)", inspect.getsource(self.fn.fn))))
        return launch(self, *args, **kwargs)

    config = configuration(*json.loads(ranges))
    errors, ran = [], {}
    noting = mock.patch.object(CachingAutotuner, "run", noted)
    with set_current_vllm_config(config), set_forward_context({}, config), noting, torch.no_grad():
        model = model_for(config, device)
        for size in SIZES:
            x = torch.randn(size, 4, 32)
            found, expected = model(x.to(device)).cpu().double(), model.reference(x.double())
            errors.append(float((found - expected).norm() / expected.norm()))
            blocks.clear()
            with profile(activities=[ProfilerActivity.CPU]) as trace:
                model(x.to(device))
            ran[size] = [*blocks], sum(event.name == "aten::bmm" for event in trace.events())
    return {"compiles": compilation_counter.num_inductor_compiles, "armed": armed, "error": max(errors), "ran": ran}


def configuration(sizes: list[int], ends: list[int]) -> Any:
    """What vLLM has for these sizes, and ranges with these ends, without fusions that need its native libraries."""
    from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode, VllmConfig

    config = VllmConfig(
        compilation_config=CompilationConfig(
            cudagraph_mode=CUDAGraphMode.NONE,
            splitting_ops=["diode_lut_tests::attention"],
            compile_sizes=sizes,
            compile_ranges_endpoints=ends,
        )
    )
    config.compilation_config.mode = CompilationMode.VLLM_COMPILE  # which vLLM does not have on a CPU
    fusions = config.compilation_config.pass_config
    for name in vars(fusions):
        if name.startswith(("fuse_", "enable_")):
            setattr(fusions, name, False)
    return config


def declare_native_operators() -> None:
    """Those of NATIVE that there are none of, where vLLM's libraries cannot be loaded."""
    import torch

    library = torch.library.Library("_C", "FRAGMENT")
    for name in NATIVE:
        if not hasattr(torch.ops._C, name):
            library.define(f"{name}(Tensor x) -> Tensor")
    DECLARED.append(library)


def model_for(config: Any, device: str) -> Any:
    """A matmul, attention, at which vLLM splits the graph, and a matmul with work before and after it."""
    import torch
    from vllm.compilation.decorators import support_torch_compile

    @torch.library.custom_op("diode_lut_tests::attention", mutates_args=())
    def attention(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    attention.register_fake(torch.empty_like)

    class Model(torch.nn.Module):
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weights = [torch.randn(4, 32, 24), torch.randn(4, 24, 32)]
            self.first, self.second = (torch.nn.Parameter(each.to(device), False) for each in self.weights)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.ops.diode_lut_tests.attention(torch.bmm(x.transpose(0, 1), self.first))
            return torch.bmm(y.relu(), self.second).transpose(0, 1)

        def reference(self, x: torch.Tensor) -> torch.Tensor:
            first, second = (each.double() for each in self.weights)
            return torch.bmm((torch.bmm(x.transpose(0, 1), first) * 2).relu(), second).transpose(0, 1)

    return support_torch_compile(Model)(vllm_config=config)


if __name__ == "__main__":
    with interpreter_cuda() if sys.argv[1] == "cuda" else nullcontext():
        print(json.dumps(main(*sys.argv[1:])))
