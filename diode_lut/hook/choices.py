"""Turn a decision about a matmul on a GPU into Inductor's choices: the library, a Triton kernel or decompose_k.

CannotRun says why a config must not run: it would not compile, or it would not be the timed kernel.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from sympy import Integer, Symbol, sympify
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.common import BackendFeature, has_backend_feature
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.ir import ChoiceCaller, get_symbolic_inputs
from torch._inductor.kernel.mm import decompose_k_subgraph_template
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.lowering import expand
from torch._inductor.select_algorithm import GeneratedCodeCache, TritonTemplate, TritonTemplateCaller
from torch._inductor.template_heuristics.params import DictKernelTemplateParams
from torch._inductor.template_heuristics.registry import get_template_heuristic
from torch._inductor.template_heuristics.triton import GemmConfig
from torch._inductor.utils import _use_autotune_backend, is_big_gpu, is_gpu, sympy_product, use_triton_tma_template
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from diode_lut.decide.sources import Decision
from diode_lut.hardware import Architecture, architecture
from diode_lut.hook.joined_kernel import joined_template, options_of
from diode_lut.hook.problems import MARK, TORCH_DTYPES, problem_of
from diode_lut.hook.snapshot import CannotRun, InductorSnapshot, autotuning, settled, snapshot, tried
from diode_lut.hook.switch import leave, off_because
from diode_lut.hook.versions import (
    UIDS,
    cpp_wrappers_have_scratch,
    indexes_in_64_bits,
    splits_large_batches,
    subgraphs_keep_sizes_dynamic,
)
from diode_lut.hook.wrapper import can_branch, with_memory_in_any_thread
from diode_lut.problem import BATCHED, INTEGER, NO_VARIANT, SCALED, Problem, Scaling
from diode_lut.templates.config import ATEN, PADDED_OPS, Config, needed_pad, pad_multiple, pointer_gemm
from diode_lut.templates.template import BLOCKS_K_OF_BYTES, is_precise, register_complaints

Build = Callable[[Config], ChoiceCaller]  # makes the choice of a config without its ``pad``, or raises CannotRun


def in_force() -> InductorSnapshot | None:
    """Return the snapshot. None if the hook is off, or if its settings leave Inductor's present mode alone."""
    if off_because:
        return None
    now = snapshot()
    decides = now.settings.policy != "off" and (now.settings.default_mode or autotuning())
    return now if decides else None


def marked_choices(now: InductorSnapshot, decision: Decision, build: Build, pad: int = 1) -> list[ChoiceCaller] | None:
    """Return the marked choices of a decision, or None if Inductor should choose among its own.

    Take up to ``top_k`` configs that can run, best first. Take a model's configs only if its first can run. With the
    policy ``verify``, add aten. A miss gets aten without a benchmark if the setting ``fallback_to_autotune`` is false.
    Raise MissError if there is no choice under the setting ``strict``. Inductor has padded the operands to multiples of
    ``pad`` elements.
    """
    built = settled(now, decision, runnable(decision, build, pad), now.settings.top_k, ATEN.padded(pad), build)
    for config, choice in built.items():
        choice.annotations[MARK] = config.padded(1)
    return list(built.values()) or None


def runnable(decision: Decision, build: Build, pad: int = 1) -> Iterator[tuple[Config, ChoiceCaller]]:
    """Yield each config that can run with its choice, best first. Record the others."""

    def checked(candidate: Config) -> ChoiceCaller:
        if needed_pad(decision.problem, candidate.pad) != pad:
            raise CannotRun(_why_not(candidate, decision.problem, pad))
        choice = build(candidate.padded(1))
        node = choice.input_nodes[0]
        if candidate.kernel.many_sms and not is_big_enough(node.get_device_or_error(), decision, candidate):
            raise CannotRun("Inductor finds the GPU too small, and no row has the config's measured gain")
        return choice

    return tried(decision, checked)


def _why_not(config: Config, problem: Problem, pad: int) -> str:
    """Return why a config does not fit operands padded to multiples of ``pad``."""
    multiple = pad_multiple(problem.dtype)
    if needed_pad(problem, config.pad) == 1:
        return f"its operands are padded to multiples of {pad} already"
    if problem.op not in PADDED_OPS:
        return f"Inductor does not pad {problem.op}"
    if config.pad != multiple:
        return f"Inductor pads {problem.dtype} to multiples of {multiple} only"
    return "Inductor has not padded its operands" if snapshot().settings.pad else "the setting pad is off"


def is_big_enough(device: torch.device, decision: Decision, config: Config) -> bool:
    """Return whether Inductor finds the GPU big enough for a config, or its gain is measured anyway."""
    return decision.is_measured(config) or snapshot().settings.policy == "verify" or is_big_gpu(device)


def offered(templates: Sequence[Any], name: str, op: str) -> list[Any]:
    """Return those of Inductor's ``templates`` that our template ``name`` stands for, for an op."""
    uids = UIDS[name].get(op, ())
    return [template for template in templates if template.uid in uids]


def library_choice(templates: Sequence[Any], op: str, ask: Callable[[list[Any]], list[ChoiceCaller]]) -> ChoiceCaller:
    """Return the library's choice for an op, or raise CannotRun. ``ask`` makes choices of some of ``templates``.

    Prefer ``bias_addmm`` to ``addmm``: it keeps the bias a vector, for cuBLASLt's bias epilogue.
    """
    library = offered(templates, ATEN.template, op)
    choices = ask(library) if library else []
    if not choices:
        raise CannotRun("Inductor does not offer the library here")
    return next((choice for choice in choices if choice.name == "bias_addmm"), choices[0])


def build_choice(
    config: Config, inputs: MMKernelInputs, op: str, layout: ir.FixedLayout | None = None, variant: str = NO_VARIANT
) -> ir.ChoiceCaller:
    """Return the Triton or decompose_k choice of ``config``, with its result in ``layout``, or raise CannotRun."""
    if op not in UIDS[config.template] or not (config.kernel.tiled or config.k_split > 1 or config.kernel.few_rows):
        raise CannotRun(f"{config.template} is not for {op} on this device")
    require_settings_of_timings(config, inputs.dtype(), inputs.device())
    if op in ("addmm", "baddbmm"):
        _require_factors(inputs)
    if op in BATCHED and not splits_large_batches() and not _batch_fits_grid(inputs):
        raise CannotRun(f"the batch may exceed {_MAX_GRID_Y}, the limit on a grid")
    require_templates(inputs.output_layout(flexible=False))
    if config.k_split > 1:
        return _decompose_k(config, inputs)
    if config.kernel.few_rows:
        return _few_rows(config, inputs, op, layout)
    if op in INTEGER:
        _require_blocks_of_bytes(config)
    options = scaling_options(config, inputs, variant) if op in SCALED else {}
    uid, *_ = UIDS[config.template][op]  # importing ``torch._inductor.lowering`` registers all templates
    return _triton(config, TritonTemplate.all_templates[uid.removeprefix("triton::")], inputs, op, layout, options)


_MAX_GRID_Y = 65535  # the limit of CUDA and of ROCm on the second dimension of a launch


_NO_FASTER_IN_FLOAT16 = ("sm_90",)  # on an H200, the library takes 1.16 times as long as in timings


def require_settings_of_timings(config: Config, dtype: torch.dtype, device: torch.device) -> None:
    """Raise CannotRun if a setting makes kernels or the library compute otherwise than in timings.

    With ``allow_fp16_accumulation`` the library may add in float16, and Triton's kernels add in float32 as before.
    """
    taken = snapshot()
    if dtype == torch.float16 and taken.matmul.float16_accumulation:
        if config.k_split > 1:
            raise CannotRun("timings are without allow_fp16_accumulation, and the library multiplies the parts of K")
        if taken.hardware(device).arch not in _NO_FASTER_IN_FLOAT16:
            raise CannotRun("timings are without allow_fp16_accumulation, which may make the library faster")
    if dtype == torch.float32 and not taken.has_present_settings():
        taken.answered = False
        raise CannotRun("the precision of float32 matmuls has changed since the compile began")
    if dtype == torch.float32 and taken.matmul.triton not in ("", "tf32" if allows_tf32(dtype) else "ieee"):
        raise CannotRun(f"with TRITON_F32_DEFAULT={taken.matmul.triton} Triton multiplies float32 otherwise than timed")


def allows_tf32(dtype: torch.dtype) -> bool:
    """Return whether kernels of the type use TF32. Problems of ``tf32`` are timed so, wherever PyTorch allows it."""
    return dtype == torch.float32 and snapshot().float32("cuda") == "tf32"


def require_templates(layout: ir.Layout) -> None:
    """Raise CannotRun unless Inductor allows Triton templates for such a result. The number of SMs is ignored."""
    if snapshot().matmul.carveout is not None:
        raise CannotRun("timings are without an SM carve-out")
    if is_on("batch_invariant"):  # since torch 2.13
        raise CannotRun("Inductor's setting batch_invariant allows the library only")
    if is_on("triton.enable_tma_load_for_template_epilogue"):
        raise CannotRun("with triton.enable_tma_load_for_template_epilogue, epilogues may not compile")
    if not _offers_triton(layout):
        raise CannotRun("Inductor allows no Triton kernel for this matmul on this device")


def is_on(name: str) -> bool:
    """Return whether a setting of Inductor's is on. It is off in a release without it."""
    found: Any = inductor_config
    for part in name.split("."):
        found = getattr(found, part, False)
    return bool(found)


def _offers_triton(layout: ir.Layout) -> bool:
    """Return Inductor's ``use_triton_template`` for a result, without its check of the number of SMs."""
    return (
        is_gpu(layout.device.type)
        and layout.dtype in TORCH_DTYPES.values()
        and _use_autotune_backend("TRITON")
        and has_backend_feature(layout.device, BackendFeature.TRITON_TEMPLATES)
    )


def _require_factors(inputs: MMKernelInputs) -> None:
    """Raise CannotRun unless alpha and beta are numbers other than 0. With 0, ATen may not read the operand."""
    factors = {name: inputs.get_scalar(name) for name in ("alpha", "beta")}
    if any(getattr(factor, "free_symbols", None) for factor in factors.values()):
        raise CannotRun("alpha or beta is a size that may change, and templates take numbers only")
    for name, factor in factors.items():
        if factor == 0:
            raise CannotRun(f"with {name}=0 not every operand may be read")


def _batch_fits_grid(inputs: MMKernelInputs) -> bool:
    batch = inputs.shapes_symbolic()[-1][0]
    return bool(V.graph.sizevars.statically_known_true(batch <= _MAX_GRID_Y))


def _require_blocks_of_bytes(config: Config) -> None:
    """Raise CannotRun if a step along K is shorter than a matrix instruction, which Triton does not compile."""
    if config.tiles.block_k not in BLOCKS_K_OF_BYTES:
        raise CannotRun(f"with block_k={config.tiles.block_k} it cannot multiply int8")


def _triton(
    config: Config,
    template: TritonTemplate,
    inputs: MMKernelInputs,
    op: str,
    layout: ir.FixedLayout | None,
    options: dict[str, Any],
) -> ir.ChoiceCaller:
    """Return the choice of a Triton template. ``options`` are added to its heuristic's.

    The heuristic generates a single config, and must not scale it to the sizes.
    """
    tiles, device = config.tiles, architecture(snapshot().hardware(inputs.device()).arch)
    if not config.kernel.runs_on(device):
        raise CannotRun(f"there is no {config.template} for {device.name}")
    for parameter in config.kernel.parameters:
        if parameter.name in config.tunables and not parameter.is_known_to(device):
            raise CannotRun(f"kernels for {device.name} have no {parameter.name}")
    _require_room(config, device, inputs, op)
    inputs = with_fixed_layouts(inputs, op)
    if not indexes_in_64_bits() and not _fits_32_bits(inputs):
        raise CannotRun("a matrix has more elements than this template can index")
    if config.kernel.tma and not tma_legal(inputs):
        raise CannotRun("tensor descriptors cannot describe these matrices")
    heuristic: Any = copy.copy(get_template_heuristic(template.uid, str(inputs.device_type), op))
    heuristic.should_scale_configs = False
    gemm = GemmConfig(
        tiles.block_m, tiles.block_n, tiles.block_k, tiles.num_stages, tiles.num_warps, group_m=tiles.group_m
    )
    for name, value in config.tunables.items():
        if name not in tiles._fields:
            setattr(gemm, name, value)  # Inductor's heuristics for ROCm ask for it by name
    if device.triton == "hip":
        heuristic.triton_config = partial(_as_written, config, heuristic.triton_config)
    heuristic._get_config_generator = lambda: partial(heuristic.preprocess_mm_configs, configs=[gemm])
    extra, tf32 = heuristic.get_extra_kwargs(inputs, op), allows_tf32(inputs.dtype())
    if tf32 and not extra["ALLOW_TF32"] and is_on("force_same_precision"):  # until torch 2.12
        raise CannotRun("Inductor's setting force_same_precision allows no TF32 here, with which it was timed")
    if device.triton == "cuda" and config.masks_rows:
        m, n, _ = inputs.mnk_symbolic()
        template = copy.copy(template)
        template.template = _SmallBlocks(
            template.template, masked=not are_whole(m, tiles.block_m), whole_n=are_whole(n, tiles.block_n)
        )
        template._generated_code_cache = GeneratedCodeCache()  # type: ignore[no-untyped-call]  # not Inductor's code
    alike = _but_for_its_width(config, inputs, op) if device.triton == "cuda" and op in ("mm", "addmm") else None
    with inductor_config.patch(max_autotune_gemm=True, max_autotune_prune_choices_based_on_shared_mem=False):
        params = next(iter(heuristic.get_template_configs(inputs, op)), None)
        if params is None:
            raise CannotRun("Inductor makes no kernel of it")
        choice = _choice_of(
            template if alike is None or _may_run_codes() else _rendered_once(template, alike),
            DictKernelTemplateParams({**params.to_kwargs(), **options}),
            {**extra, "ALLOW_TF32": tf32},
            layout or inputs.output_layout(flexible=False),
            heuristic.adjust_kernel_inputs(inputs, op),
        )
    if config.kernel.tma:
        return with_memory_in_any_thread(choice)
    if device.triton != "cuda":
        return choice
    choice = _with_short_code(choice)
    return choice if alike is None else _with_shared_code(choice, alike)


def are_whole(size: Any, block: int) -> bool:
    """Return whether blocks are known to end where a size ends."""
    return bool(V.graph.sizevars.statically_known_multiple_of(size, block))


class _SmallBlocks(NamedTuple):
    """Inductor's Jinja template for mm with blocks of 16 rows, which masks rows and computes only remainders it needs.

    Inductor's loads row ``i % M``. So with one row, all programs load it 16 times from the same lines of the L2 cache.
    On an H200, kernels take 0.83 of their time with a mask for one row, in geometric mean, and 0.96 for 4 rows. With 8
    rows a mask changes nothing. Rows are ``masked``, or else blocks end where A ends. With M that is no constant,
    remainders by M and N are up to 200 of 300 instructions before the first load, and kernels take 0.94 to 0.99 of
    their time without them.
    """

    template: Any
    masked: bool
    whole_n: bool

    def render(self, load_input: Callable[..., str], **names: Any) -> str:
        """Return the code of a kernel, whose mask of A is by ``rm``, the rows of the block."""

        def load(name: str, *arguments: Any, mask: str | None = None, **named: Any) -> str:
            if name == "A" and self.masked:
                mask = "(rm < M)[:, None]" if mask is None else f"{mask} & (rm < M)[:, None]"
            return load_input(name, *arguments, mask=mask, **named)

        code = str(self.template.render(load_input=load, **names)).replace("rm % M", "rm")
        return code.replace("rn % N", "rn") if self.whole_n else code


_LOOP = re.compile(r"(?<=\brange\()(0, tl\.cdiv\()?K\b")  # the end of the loop along K, or its start if it counts down


def _with_short_code(choice: ChoiceCaller) -> ChoiceCaller:
    """Return the choice with generated code whose loop along K is not unrolled.

    NVIDIA's assembler unrolls a loop of up to about 40 constant steps, which takes seconds, and more registers. So the
    program's index along the third dimension of the grid is added to K: always 0, but the assembler does not know that.
    """
    if not isinstance(choice, TritonTemplateCaller):
        return choice
    make = choice.make_kernel_render

    def make_kernel_render(*args: Any, **kwargs: Any) -> Any:
        kernel, render = make(*args, **kwargs)

        def short() -> Any:
            rendered = render()
            rendered._code = _LOOP.sub(r"\1K + tl.program_id(2)", rendered._code)
            return rendered

        return kernel, short

    choice.make_kernel_render = make_kernel_render
    return choice


SHARED_N = "ks_n"
"""The argument of a shared kernel that holds N. It begins like Inductor's arguments, and so is not renamed again."""

_LEAST_WIDTHS = 4  # fewer kernels compile side by side, on most machines
_MULTIPLE = 16  # of all multiples of an argument, Triton knows this alone


class _Alike(NamedTuple):
    """N of a GEMM that may share a kernel, and all else that its kernel depends on."""

    n: int
    others: Hashable


_gemms: WeakKeyDictionary[Callable[..., Any], _Alike] = WeakKeyDictionary()
"""The GEMMs that may share a kernel, by the function that makes it."""

_shared: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""The results of GEMMs that share a kernel, for each scheduler."""


def _but_for_its_width(config: Config, inputs: MMKernelInputs, op: str) -> _Alike | None:
    """Return a GEMM of constant sizes as one of many widths, or None if its N is more than a width.

    An N that is a stride of an operand stays a constant, because loads are as wide as its multiples allow.
    """
    strides = tuple(map(tuple, inputs.strides_symbolic()))
    m, n, k = inputs.mnk_symbolic()
    numbers = [m, n, k, *(step for steps in strides for step in steps)]
    if not all(isinstance(size, (int, Integer)) for size in numbers):
        return None
    if numbers.count(n) > 1 or n % _MULTIPLE or n < config.tiles.block_n:
        return None
    factors = [inputs.get_scalar(name) for name in ("alpha", "beta") if op == "addmm"]
    whole = config.masks_rows and n % config.tiles.block_n == 0
    return _Alike(int(n), (config, op, *factors, m, k, whole, strides, inputs.dtypes(), inputs.out_dtype()))


def _may_run_codes() -> bool:
    """Return whether a choice's own code may run: Inductor times several choices, and `collect` each that it makes."""
    settings = snapshot().settings
    return settings.top_k > 1 or settings.policy != "pick"


class _Codes(GeneratedCodeCache):
    """The code of each choice of a graph, by all that it depends on but N: nobody runs it, and to render it takes long.

    Of the events that a rendering repeats in the next kernel, the first tells its arguments, and others what may be
    fused before it, which is nothing here.
    """

    alike: str | None = None

    def make_key(self, *_arguments: Any, **_named: Any) -> str | None:
        """Return the key of the present GEMM."""
        return self.alike

    def put_entry(self, cache_key: str | None, code: str, extra: str, events: Any) -> None:
        """Keep a code, and the event that tells its arguments."""
        super().put_entry(cache_key, code, extra, [event for event in events or () if event[0] == "def_kernel"])


_codes: WeakKeyDictionary[Any, _Codes] = WeakKeyDictionary()
"""The codes of choices, for each graph."""


def _rendered_once(template: TritonTemplate, alike: _Alike) -> TritonTemplate:
    """Return the template, which takes the code of a choice that differs in N only, if the graph has one."""
    codes = _codes.setdefault(V.graph, _Codes())  # type: ignore[no-untyped-call]
    codes.alike = repr((template.name, alike.others))
    template = copy.copy(template)
    template._generated_code_cache = codes
    return template


def _with_shared_code(choice: ChoiceCaller, alike: _Alike) -> ChoiceCaller:
    """Return the choice of an mm or addmm, with code that GEMMs of other widths share if the graph has many of them.

    With constant sizes, Inductor compiles a kernel for each N, although their codes differ in a number only. M and K
    stay constants.
    """
    if not isinstance(choice, TritonTemplateCaller):
        return choice
    make, constant = choice.make_kernel_render, Integer(alike.n)
    argument = Symbol(SHARED_N, integer=True, positive=True)

    def make_kernel_render(node: Any, **options: Any) -> Any:
        kernel, render = make(node, **options)
        original = kernel.rename_indexing

        def renamed(index: Any) -> Any:
            found = original(index)
            return found if isinstance(found, list) else sympify(found).xreplace({constant: argument})

        def shared() -> Any:
            try:
                is_shared = node.get_name() in _results_of_shared_kernels()
            except Exception as error:
                leave("a kernel of many widths", error)
                is_shared = False
            if not is_shared:
                return render()
            kernel.args.sizevars[constant] = SHARED_N  # as Inductor does for a size that may change
            kernel.rename_indexing = renamed
            rendered = render()
            rendered._code = rendered._code.replace("M * N == 0", "False").replace("N >= BLOCK_N", "True")
            return rendered

        return kernel, shared

    choice.make_kernel_render = make_kernel_render
    _gemms[make_kernel_render] = alike
    return choice


def _results_of_shared_kernels() -> set[str]:
    """Return the results of the present graph's GEMMs that fuse nothing and differ in their widths, which are many."""
    scheduler: Any = V.graph.scheduler
    if scheduler not in _shared:
        alike = defaultdict[Hashable, dict[str, int]](dict)
        for node in scheduler.nodes:
            make = getattr(node.node, "make_kernel_render", None) if node.is_template() else None
            gemm = None if make is None else _gemms.get(make)
            if gemm is not None and len(node.get_nodes()) == 1:
                (n, others), rows = gemm, tuple(node.node.get_stride())
                alike[others, None if rows == (n, 1) else rows][node.node.get_name()] = n
        many = (results for results in alike.values() if len(set(results.values())) >= _LEAST_WIDTHS)
        _shared[scheduler] = {name for results in many for name in results}
    found = _shared[scheduler]
    if not found or not can_branch() or inductor_config.triton.autotune_at_compile_time:
        return set()  # numbers are arguments in Python wrapper code alone
    return found


def _few_rows(config: Config, inputs: MMKernelInputs, op: str, layout: ir.FixedLayout | None) -> ir.ChoiceCaller:
    """Return the choice of the project's template for few rows. Inductor's heuristic for mm adds bias and factors."""
    problem = problem_of(inputs, op)
    assert problem is not None, "its sizes are constants, as the template demands"
    require_fit(config, problem, inputs.device())
    inputs = with_fixed_layouts(inputs, op)
    heuristic: Any = get_template_heuristic(UIDS[pointer_gemm(op)][op][0], str(inputs.device_type), op)
    return _choice_of(
        joined_template(1, 0, gated=False),
        DictKernelTemplateParams(options_of(config, problem.m, [problem.n], problem.k)),
        heuristic.get_extra_kwargs(inputs, op),
        layout or inputs.output_layout(flexible=False),
        heuristic.adjust_kernel_inputs(inputs, op),
    )


def _as_written(config: Config, make: Callable[..., Any], **values: int) -> Any:
    """Return Inductor's form of a config on ROCm, with the config's stages and waves, which Inductor would replace."""
    wanted = config.kernel.values(config.params)
    return make(**{**values, "num_stages": wanted["num_stages"], "waves_per_eu": wanted["waves_per_eu"]})


def _require_room(config: Config, device: Architecture, inputs: MMKernelInputs, op: str) -> None:
    """Raise CannotRun if the kernel needs more registers or shared memory than the device has."""
    for complaint in register_complaints(config.tiles, device):
        raise CannotRun(f"{complaint.field}: {complaint.reason}")
    memory = shared_memory_of(inputs.device())
    kernel: Any = config.kernel
    if kernel.shared_memory(config.tiles, op, inputs.mat1mat2()[0].get_dtype().itemsize, device) > memory:
        raise CannotRun("it takes more shared memory than the device has")


def shared_memory_of(device: torch.device) -> int:
    """Return the bytes of shared memory that a block may have."""
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", None) or properties.shared_memory_per_block)


def require_fit(config: Config, problem: Problem, device: torch.device) -> None:
    """Raise CannotRun if the device has no such kernel, or too little room for it."""
    known = architecture(snapshot().hardware(device).arch)
    if not config.kernel.runs_on(known):
        raise CannotRun(f"there is no {config.template} for {known.name}")
    room = known._replace(shared_memory=shared_memory_of(device))
    for complaint in config.kernel.faults_on(problem, config.params, room):
        raise CannotRun(complaint.reason)


def _fits_32_bits(inputs: MMKernelInputs) -> bool:
    """Return whether 32 bits index every element of operands and result. This guards dynamic sizes."""
    result = ir.Buffer(name="result", layout=inputs.output_layout(flexible=False))
    return bool(SIMDScheduling.can_use_32bit_indexing(sympy_product(result.get_size()), [*inputs.nodes(), result]))


def _choice_of(*parts: Any) -> ir.ChoiceCaller:
    choice = KernelTemplateChoice(*parts).choice
    if choice is None:
        raise CannotRun("Inductor makes no kernel of it")
    if isinstance(choice, TritonTemplateCaller):
        # With a single choice, Inductor fuses the work before a matmul without a benchmark. No table has timed that.
        choice.allowed_prologue_inps = type(choice.allowed_prologue_inps)()
    return choice


def with_fixed_layouts(inputs: MMKernelInputs, op: str) -> MMKernelInputs:
    """Return the inputs for a Triton template: addmm's bias expanded to (M, N), and all layouts fixed.

    The expanded bias stays a view: for N = 1 it has no unit stride, and Inductor would copy it. ``inputs`` is not
    changed, because aten's choice is made of its nodes, with the bias as it was.
    """
    nodes = list(inputs.nodes())
    if op == "addmm":
        m, n, _ = inputs.mnk_symbolic()
        bias = nodes[0] if isinstance(nodes[0], ir.TensorBox) else ir.TensorBox(nodes[0])
        nodes[0] = ir.ExternKernel.realize_input(expand(bias, [m, n]))
    for node in nodes:
        fix_layout(node)
    places = {"mat1_idx": inputs._mat1_idx, "mat2_idx": inputs._mat2_idx}
    return MMKernelInputs(nodes, scalars=inputs._scalars, out_dtype=inputs._out_dtype, **places)


def fix_layout(node: Any) -> None:
    """Fix the layout of the node, and of its base if it is a view."""
    if isinstance(node.get_layout(), ir.FlexibleLayout):
        node.freeze_layout()
    elif _has_open_base(node):
        node.unwrap_view().freeze_layout_with_exact_strides(node.unwrap_view().get_stride())


def _has_open_base(node: Any) -> bool:
    """Return whether the node is a fixed view of a buffer whose layout may still change.

    In torch 2.11 a template would read the view with the strides of the buffer.
    """
    return isinstance(node, ir.ReinterpretView) and isinstance(node.unwrap_view().get_layout(), ir.FlexibleLayout)


def with_a_layout(node: Any, assumed: list[tuple[Any, ir.Layout]]) -> Any:
    """Return the input. If its layout is open, return a buffer of its name with the likely layout instead.

    Append the node and that layout to ``assumed``. If nothing asks for a layout, Inductor takes the order in which data
    is read. So padding a column-major matrix makes a column-major copy. CannotRun for a bias that is not in memory yet,
    as in torch 2.11: putting it there for a kernel that may never run would change the library's input.
    """
    if not ir.is_storage_and_layout(node):
        raise CannotRun("its bias is not in memory yet")
    layout = node.get_layout()
    if not isinstance(layout, ir.FlexibleLayout) and not _has_open_base(node):
        return node
    buffer = V.graph.try_get_buffer(node.get_name())
    computed = isinstance(layout, ir.FlexibleLayout) and isinstance(buffer, ir.ComputedBuffer)
    order = buffer.get_fill_order() if computed else None  # type: ignore[union-attr]
    likely = layout.as_fill_order(order) if order else copy.copy(layout).as_fixed()
    assumed.append((node, likely))
    return ir.TensorBox.create(ir.InputBuffer(name=node.get_name(), layout=likely))


_RECIPES = {"tensor": 0, "row": 1}  # PyTorch's numbers for the extent of a scale: ``torch.nn.functional.ScalingType``
_LEAST_K = 32  # K of the smallest matrix instruction for float8


def scaling_options(config: Config, inputs: MMKernelInputs, variant: str) -> dict[str, Any]:
    """Return the options of templates for scaled_mm. CannotRun if the template would compute something else."""
    scaling, block_k = Scaling.of(variant), config.tiles.block_k
    if not is_precise(block_k, variant):
        raise CannotRun(f"with block_k={block_k} it cannot multiply float8, or is less precise than the library")
    if not V.graph.sizevars.statically_known_true(inputs.mnk_symbolic()[2] >= _LEAST_K):
        raise CannotRun(f"K is less than {_LEAST_K}")
    if not config.kernel.tma:
        return {"USE_FAST_ACCUM": scaling.fast}
    if scaling.bias:
        raise CannotRun("the template with tensor descriptors adds no bias")
    recipe = _RECIPES[scaling.per]
    return {"USE_FAST_ACCUM": scaling.fast, "SCALE_RECIPE_A": recipe, "SCALE_RECIPE_B": recipe}


_DESCRIPTOR_BYTES = 16  # the alignment of addresses in a tensor descriptor


def tma_legal(inputs: MMKernelInputs) -> bool:
    """Return whether tensor descriptors have memory, and can describe A, B and C."""
    a, b = inputs.mat1mat2()
    if is_on("triton.enable_template_tma_store"):
        return False  # an epilogue may then read a result that is never stored, and does not compile
    if (V.graph.aot_mode or V.graph.cpp_wrapper) and not cpp_wrappers_have_scratch():
        return False  # programs would write their descriptors past the end of the memory
    with inductor_config.patch({"triton.enable_persistent_tma_matmul": True}):
        if not use_triton_tma_template(a, b, output_layout=inputs.output_layout(flexible=False)):
            return False
    return all(_order_is_plain(node) and _stays_aligned(node) and _rows_are_apart(node) for node in (a, b))


def _order_is_plain(node: Any) -> bool:
    """Return whether ``is_transposed`` is right. The template relies on it, but it fails with padding or one row."""
    return bool(node.get_stride()[0 if node.get_layout().is_transposed() else 1] == 1)


def _rows_are_apart(node: Any) -> bool:
    """Return whether no two rows (columns, if column-major) share memory: TMA is untested with expanded matrices."""
    size, stride = node.get_size(), node.get_stride()
    inner = 0 if node.get_layout().is_transposed() else 1
    return bool(V.graph.sizevars.statically_known_true(stride[1 - inner] >= size[inner]))


def _stays_aligned(node: Any) -> bool:
    """Return whether all rows (columns, if column-major) start on 16-byte boundaries for all values of sizes.

    Inductor checks only the hints of sizes, and where an input starts, but not where a view of it starts.
    """
    itemsize = node.get_dtype().itemsize
    steps = [step for step in node.get_stride() if step != 1]
    return all(
        V.graph.sizevars.statically_known_multiple_of(number * itemsize, _DESCRIPTOR_BYTES)
        for number in (node.get_layout().offset, *steps)
    )


_SUBGRAPH_SETTINGS = {"max_autotune": False, "max_autotune_gemm": False, "max_autotune_gemm_backends": "ATEN"}
"""The settings with which Inductor lowers the graph of a choice."""


def _decompose_k(config: Config, inputs: MMKernelInputs) -> ir.ChoiceCaller:
    """Cut K into ``k_split`` equal parts: a bmm and a sum. Neither AOTInductor nor C++ wrappers take it."""
    k = inputs.mnk_symbolic()[2]
    if not V.graph.sizevars.statically_known_multiple_of(k, config.k_split):
        raise CannotRun(f"K cannot be cut into {config.k_split} equal parts")
    if V.graph.aot_mode or V.graph.cpp_wrapper:
        raise CannotRun("AOTInductor and the C++ wrapper do not take decompose_k")
    if not _sizes_stay_dynamic(inputs):
        raise CannotRun("Inductor would make constants of the sizes that may change")
    if free_unbacked_symbols([*inputs.shapes_symbolic(), *inputs.strides_symbolic()]):
        raise CannotRun("a graph of its own takes no sizes that are known only when it runs")
    params = DictKernelTemplateParams(config.tunables)
    layout = inputs.output_layout(flexible=False)
    choice = _choice_of(decompose_k_subgraph_template, params, {}, layout, inputs)
    if not _returns_its_layout(choice):
        raise CannotRun("Inductor would return its result with other strides than it is read with")
    return choice


def _sizes_stay_dynamic(inputs: MMKernelInputs) -> bool:
    return subgraphs_keep_sizes_dynamic() or not get_symbolic_inputs(inputs.nodes())


def _returns_its_layout(choice: Any) -> bool:
    """Return whether the graph of ``choice``, a SubgraphChoiceCaller, returns one tensor, in the layout of the choice.

    Inductor chooses the strides of the graph's result when it lowers the graph, after it has made the choice. Readers
    use the layout of the choice, so digits are wrong if the layouts differ. To compare them, lower the graph once
    without asking tables.
    """
    graph = V.graph.make_subgraph(choice.gm, choice.example_inputs, f"{choice.name}_layout")
    for symbol in get_symbolic_inputs(choice.input_nodes):
        graph.graph_inputs[symbol.name] = symbol
        graph.graph_input_names.append(symbol.name)
    with without_tables(), inductor_config.patch(_SUBGRAPH_SETTINGS), V.set_graph_handler(graph):
        graph.run(*choice.example_inputs)
    outputs = graph.graph_outputs
    return len(outputs) == 1 and bool(outputs[0].get_layout() == choice.layout)


def without_tables() -> AbstractContextManager[Any]:
    """Have Inductor choose alone, or by the handler below ours.

    The matmuls in the graph of a choice are not the program's. Inductor chose their kernels when the choice was
    measured.
    """
    handler: AbstractContextManager[Any] = V.set_choices_handler(
        getattr(V.choices, "_below", None) or InductorChoices()
    )
    return handler


def lower_without_tables(lower: Callable[..., Any], *arguments: Any) -> Any:
    """Lower the graph of a choice without asking tables."""
    with without_tables():
        return lower(*arguments)
