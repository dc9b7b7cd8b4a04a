"""Problems with packed matrices, and tables of them, for hypothesis to draw."""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from diode_lut.formats.content import exact_table
from diode_lut.hardware import Hardware
from diode_lut.problem import BATCHED, DTYPES, GEMMS, LAYOUTS, Problem
from diode_lut.table import Table
from diode_lut.templates.config import TEMPLATES, Config
from tests.strategies import Kind, kinds

H200 = Hardware("NVIDIA H200", "sm_90", 132)

_sizes = st.integers(1, 300) | st.sampled_from([512, 4096, 2**20])


def _problem(kind: Kind, b: int, m: int, n: int, k: int) -> Problem:
    op, dtype, layout, variant = kind
    return Problem.of(op, m, n, k, dtype=dtype, layout=layout, b=b if op in BATCHED else 1, variant=variant)


def _visible(problem: Problem) -> bool:
    """Whether the layout shows in the strides: for neither matrix a single row or column is called column-major."""
    return (problem.layout[0] == "n" or problem.m > 1) and (problem.layout[1] == "n" or problem.k > 1)


def packed(
    *, ops: Sequence[str] = GEMMS, dtypes: Sequence[str] = DTYPES, layouts: Sequence[str] = LAYOUTS
) -> SearchStrategy[Problem]:
    """Problems of packed matrices."""
    return st.builds(_problem, kinds(ops, dtypes, layouts), _sizes, _sizes, _sizes, _sizes).filter(_visible)


def configs(*templates: str) -> SearchStrategy[Config]:
    """Configs of these templates."""

    def of(template: str) -> SearchStrategy[Config]:
        values = st.tuples(*(st.sampled_from(parameter.values) for parameter in TEMPLATES[template].required))
        return values.map(lambda params: Config(template, params))

    return st.sampled_from(templates).flatmap(of)


TEMPLATES_OF = {
    "mm": ("aten", "triton_mm", "triton_mm_persistent_tma", "decompose_k"),
    "addmm": ("aten", "triton_mm", "triton_mm_persistent_tma"),
    "bmm": ("aten", "triton_bmm"),
    "baddbmm": ("aten", "triton_bmm"),
}
"""What Inductor's lookup can say, for each op."""


def tables(problems: SearchStrategy[Problem], *templates: str) -> SearchStrategy[Table]:
    """Tables of single problems; by default with all that Inductor's lookup can say."""

    def row(problem: Problem) -> SearchStrategy[tuple[Problem, list[Config]]]:
        known = [template for template in TEMPLATES_OF[problem.op] if not templates or template in templates]
        return st.tuples(st.just(problem), st.lists(configs(*known), min_size=1, max_size=3, unique=True))

    rows = st.lists(problems.flatmap(row), max_size=5)
    return rows.map(lambda pairs: exact_table(H200, dict(pairs)))
