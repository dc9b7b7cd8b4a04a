"""What Inductor offers on an H200 that is not there, as ``config_of`` has it."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.ir import ChoiceCaller
from torch._inductor.kernel import bmm, mm
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.select_algorithm import get_algorithm_selector_cache
from torch._inductor.template_heuristics.params import DictKernelTemplateParams

from diode_lut.hook.joined_kernel import FEW_ROWS
from diode_lut.hook.problems import config_of
from diode_lut.hook.versions import KWARGS, UIDS
from diode_lut.problem import MATMULS
from diode_lut.settings import config
from diode_lut.templates.config import ATEN, TEMPLATES, Config
from tests.fake_cuda import Input, fake_cuda, lower

TRITON_KWARGS = {
    "BLOCK_M": 64,
    "BLOCK_N": 128,
    "BLOCK_K": 32,
    "GROUP_M": 8,
    "num_stages": 3,
    "num_warps": 4,
    "EVEN_K": True,
    "ACC_TYPE": "tl.float32",
}


@pytest.fixture(scope="module", autouse=True)
def _device() -> Iterator[None]:
    with fake_cuda(), config.patch(policy="off"):
        yield


def offered(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[ChoiceCaller]:
    """All candidates of the GEMM that ``function`` computes; the first is then taken, so that nothing is timed."""
    seen: list[ChoiceCaller] = []

    def take_first(choices: list[ChoiceCaller]) -> list[ChoiceCaller]:
        seen.extend(choices)
        return choices[:1]

    functions = get_algorithm_selector_cache().preprocessing_fns
    functions.append(take_first)
    try:
        with inductor_config.patch({"max_autotune": True, "triton.enable_persistent_tma_matmul": True}):
            lower(function, *map(Input, shapes))
    finally:
        functions.remove(take_first)
    return seen


def templates(choices: list[ChoiceCaller]) -> Counter[str]:
    return Counter(each.template for each in map(config_of, choices) if each is not None)


def caller(template: Any, **kwargs: Any) -> ChoiceCaller:
    """A candidate of ``template`` with these keyword arguments, as far as ``config_of`` looks at it."""
    ktc = KernelTemplateChoice(template, DictKernelTemplateParams(kwargs), {}, None, None)  # type: ignore[arg-type]
    choice = ChoiceCaller("candidate", [], None, "")  # type: ignore[arg-type]
    choice.annotations = ktc.annotations
    return choice


def test_mm_offers_aten_triton_and_tma() -> None:
    """Every candidate of a large mm has a config, and no two have the same."""
    choices = offered(torch.mm, (512, 1024), (1024, 2048))
    found = templates(choices)
    assert found.total() == len(set(map(config_of, choices))) == len(choices)
    assert found["aten"] == 1
    assert found["triton_mm"] > 10
    assert found["triton_mm_persistent_tma"] > 3


def test_mm_with_a_long_k_offers_splits() -> None:
    """The splits that Inductor tries for a long K become decompose_k configs that divide it."""
    choices = offered(torch.mm, (32, 65536), (65536, 32))
    splits = [each.k_split for each in map(config_of, choices) if each is not None and each.template == "decompose_k"]
    assert len(splits) > 3
    assert all(65536 % split == 0 for split in splits)


def test_addmm_offers_aten_and_triton() -> None:
    """The Triton candidates of addmm are the same template as mm's; torch 2.11 offers both of the library's ways."""
    found = templates(offered(torch.addmm, (2048,), (512, 1024), (1024, 2048)))
    assert found["aten"] in (1, 2)
    assert found["triton_mm"] > 10


def test_both_ways_of_aten_to_add_a_bias_are_aten() -> None:
    """Inductor's two library candidates for addmm are one config."""
    assert config_of(caller(mm.aten_addmm)) == config_of(caller(mm.aten_bias_addmm)) == ATEN


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(torch.bmm, ((4, 128, 64), (4, 64, 256))), (torch.baddbmm, ((4, 128, 256), (4, 128, 64), (4, 64, 256)))],
)
def test_batched_products_offer_triton_bmm(function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    """The Triton candidates of a batched matmul are ``triton_bmm``."""
    found = templates(offered(function, *shapes))
    assert found.keys() == {"aten", "triton_bmm"}
    assert found["aten"] == 1


def test_parameters_come_in_the_order_of_the_config() -> None:
    """Each keyword argument lands in the parameter of the same meaning, and derived ones are left out."""
    expected = Config.from_json(
        {
            "template": "triton_mm",
            "block_m": 64,
            "block_n": 128,
            "block_k": 32,
            "group_m": 8,
            "num_stages": 3,
            "num_warps": 4,
        }
    )
    assert config_of(caller(mm.mm_template, **TRITON_KWARGS)) == expected


@pytest.mark.parametrize(
    ("template", "changes"),
    [
        (mm.mm_template, {"BLOCK_M": 512}),
        (mm.mm_template, {"num_stages": 0}),
        (mm.mm_template, {"BLOCK_N": None}),
        (mm.mm_template, {"waves_per_eu": 9}),
        (mm.mm_contiguous_subgraph_template, {}),
        (mm.scaled_mm_device_tma_main_loop_scaling_template, {}),
        (mm.aten_mm_dtype, {}),
    ],
)
def test_what_no_config_can_say_is_none(template: Any, changes: dict[str, Any]) -> None:
    """Values out of range and templates without a name of ours have no config."""
    assert config_of(caller(template, **{**TRITON_KWARGS, **changes})) is None


def test_rocm_tunables_are_part_of_the_config() -> None:
    """What Inductor's heuristics for ROCm choose is described with the tunables of Triton's compiler for AMD GPUs."""
    rocm = {"matrix_instr_nonkdim": 16, "waves_per_eu": 2, "kpack": 2}
    found = config_of(caller(mm.mm_template, **{**TRITON_KWARGS, **rocm}))
    assert str(found) == "triton_mm 64x128x32 g8 s3 w4 waves2 kpack2"


def test_unannotated_candidates_are_none() -> None:
    """A candidate of another backend, which Inductor does not annotate, has no config."""
    assert config_of(ChoiceCaller("cutlass", [], None, "")) is None  # type: ignore[arg-type]


def test_uids_are_those_of_this_torch() -> None:
    """Every uid in the map belongs to a template of the torch that is installed, or to the package's own."""
    known = {
        each.uid
        for each in (
            *(mm.aten_mm, mm.aten_addmm, mm.aten_bias_addmm, bmm.aten_bmm, bmm.aten_baddbmm),
            *(mm.mm_template, mm.persistent_tma_mm_template, bmm.bmm_template, mm.decompose_k_subgraph_template),
            *(mm.aten__fp8_mm, mm.scaled_mm_device_tma_epilogue_scaling_template, mm.aten__int_mm),
        )
    }
    in_some_releases = {"aten::_scaled_mm_v2"}
    own = {f"triton::{FEW_ROWS}"}
    mapped = {uid for uids_of_op in UIDS.values() for uids in uids_of_op.values() for uid in uids}
    assert mapped - in_some_releases - own == known


def test_every_template_is_mapped() -> None:
    """The maps speak of exactly the templates, their parameters and the ops that tables can name."""
    assert UIDS.keys() == KWARGS.keys() == TEMPLATES.keys()
    assert all({*KWARGS[name], "pad"} == {*template.names, "pad"} for name, template in TEMPLATES.items())
    assert tuple(UIDS["aten"]) == MATMULS
