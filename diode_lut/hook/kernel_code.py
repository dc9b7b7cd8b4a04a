"""Change the code of Triton's GEMMs so that it compiles faster: no unrolled loop, and one kernel for many widths."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sympy import Integer, Symbol, sympify
from torch._inductor import config as inductor_config
from torch._inductor.ir import ChoiceCaller
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.select_algorithm import GeneratedCodeCache, TritonTemplate, TritonTemplateCaller
from torch._inductor.virtualized import V

from diode_lut.hook.snapshot import snapshot
from diode_lut.hook.switch import leave
from diode_lut.hook.wrapper import can_branch
from diode_lut.templates.config import Config

_LOOP = re.compile(r"(?<=\brange\()(0, tl\.cdiv\()?K\b")  # the end of the loop along K, or its start if it counts down


def with_short_code(choice: ChoiceCaller) -> ChoiceCaller:
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


class Alike(NamedTuple):
    """N of a GEMM that may share a kernel, and all else that its kernel depends on."""

    n: int
    others: Hashable


_gemms: WeakKeyDictionary[Callable[..., Any], Alike] = WeakKeyDictionary()
"""The GEMMs that may share a kernel, by the function that makes it."""

_shared: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""The results of GEMMs that share a kernel, for each scheduler."""


def but_for_its_width(config: Config, inputs: MMKernelInputs, op: str) -> Alike | None:
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
    return Alike(int(n), (config, op, *factors, m, k, strides, inputs.dtypes(), inputs.out_dtype()))


def may_run_codes() -> bool:
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


def rendered_once(template: TritonTemplate, alike: Alike) -> TritonTemplate:
    """Return the template, which takes the code of a choice that differs in N only, if the graph has one."""
    codes = _codes.setdefault(V.graph, _Codes())  # type: ignore[no-untyped-call]
    codes.alike = repr((template.name, alike.others))
    template = copy.copy(template)
    template._generated_code_cache = codes
    return template


def with_shared_code(choice: ChoiceCaller, alike: Alike) -> ChoiceCaller:
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
