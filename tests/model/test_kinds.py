"""The kinds of problems that a model knows."""

import pytest

from diode_lut.errors import ProblemError
from diode_lut.model import MIN_PROBLEMS, Kind, kinds_of, unknown
from diode_lut.problem import Problem


def problems(op: str, layout: str, count: int, m: int, b: int = 1) -> list[Problem]:
    return [Problem.of(op, m + number, 64, 64, dtype="float16", layout=layout, b=b) for number in range(count)]


def scaled(per: str, m: int) -> Problem:
    variant = f"{per}-bfloat16-fast"
    return Problem.of("scaled_mm", m, 64, 64, dtype="float8_e4m3fn", layout="nt", variant=variant)


def test_a_kind_is_known_by_several_problems() -> None:
    """A kind with fewer than MIN_PROBLEMS training problems is unknown."""
    kinds = kinds_of([*problems("mm", "nn", MIN_PROBLEMS, 64), *problems("mm", "nt", MIN_PROBLEMS - 1, 64)])
    assert [kind.key for kind in kinds] == [("mm", "float16", "nn", 16, "none", "")]
    assert unknown(kinds, problems("mm", "nt", 1, 64)[0]) == "not trained for op=mm dtype=float16 layout=nt"
    assert unknown(kinds, problems("mm", "nn", 1, 64)[0]) == ""


def test_sizes_are_those_of_all_layouts() -> None:
    """Kinds of one dtype share their ranges of sizes, those with a batch and those without one apart."""
    few = problems("mm", "nn", MIN_PROBLEMS, 64)
    kinds = kinds_of(
        [*few, *problems("addmm", "nt", MIN_PROBLEMS, 4096), *problems("bmm", "nn", MIN_PROBLEMS, 9000, b=7)]
    )
    assert unknown(kinds, few[0]._replace(m=4096)) == ""
    assert unknown(kinds, few[0]._replace(m=9000)) == "not trained for these sizes: m=9000 is outside 64 to 4099"
    assert unknown(kinds, problems("bmm", "nn", 1, 9000, b=7)[0]) == ""


def test_sizes_of_what_is_not_learned_are_not_known() -> None:
    """Problems of an unknown kind do not widen the ranges of sizes, because they are not trained on."""
    kinds = kinds_of([*problems("mm", "nn", MIN_PROBLEMS, 64), *problems("mm", "tt", MIN_PROBLEMS - 1, 100_000)])
    assert [kind.m for kind in kinds] == [(64, 63 + MIN_PROBLEMS)]


def test_only_multiples_are_known() -> None:
    """If all N or K learned from let threads load 16 bytes at once, or 8, then only such are known, with any M."""
    layers = [Problem.of("mm", 1, n, k, dtype="bfloat16", layout="nt") for n, k in ((100, 64), (160, 256), (128, 192))]
    kinds = kinds_of([*layers, layers[0]._replace(m=7)])
    assert unknown(kinds, layers[0]._replace(m=5, n=104, k=72)) == ""
    assert unknown(kinds, layers[0]._replace(n=102)) == "not trained for these sizes: n=102 is not a multiple of 4"
    assert unknown(kinds, layers[0]._replace(k=100)) == "not trained for these sizes: k=100 is not a multiple of 8"


def test_classes_of_epilogues_are_known_apart() -> None:
    """A class is known only for the ops, types and layouts that have problems with it, and has sizes of its own."""
    large, small = problems("mm", "nn", MIN_PROBLEMS, 4096), problems("mm", "nn", MIN_PROBLEMS, 64)
    light = [problem._replace(epilogue="light") for problem in small]
    kinds = kinds_of([*large, *small, *light])
    assert [kind.key for kind in kinds] == [("mm", "float16", "nn", 16, name, "") for name in ("light", "none")]
    assert unknown(kinds, light[0]) == unknown(kinds, large[0]) == ""
    wide = large[0]._replace(epilogue="light")
    assert unknown(kinds, wide) == "not trained for these sizes: m=4096 is outside 64 to 67"
    assert unknown(kinds, light[0]._replace(epilogue="heavy")).endswith("epilogue=heavy")
    assert unknown(kinds, light[0]._replace(layout="nt")).endswith("layout=nt")


def test_variants_are_known_apart() -> None:
    """A scaling is known only where there are problems with it, and it has sizes of its own; attention never is."""
    few, many = ([scaled(per, m) for m in range(m, m + MIN_PROBLEMS)] for per, m in (("row", 1), ("tensor", 4096)))
    kinds = kinds_of([*few, *many])
    assert [kind.variant for kind in kinds] == ["row-bfloat16-fast", "tensor-bfloat16-fast"]
    assert unknown(kinds, few[0]) == unknown(kinds, many[0]) == ""
    assert "m=4096 is outside 1 to 4" in unknown(kinds, scaled("row", 4096))
    assert unknown(kinds, few[0]._replace(variant="row-float16-fast")).endswith("variant=row-float16-fast")
    attention = Problem.of("flex_attention", 64, 64, 64, dtype="bfloat16", layout="nt", variant="causal", v=64)
    assert kinds_of([attention._replace(n=n) for n in range(1, 9)]) == []


def test_kinds_survive_json() -> None:
    """Kinds with and without an epilogue or a variant are the same after they are written as JSON and read again."""
    mm = problems("mm", "nn", MIN_PROBLEMS, 64)
    rows = [scaled("row", m) for m in range(1, 1 + MIN_PROBLEMS)]
    kinds = kinds_of([*mm, *(problem._replace(epilogue="heavy") for problem in mm), *rows])
    assert [Kind.from_json(kind.to_json()) for kind in kinds] == kinds
    told = [[name for name in ("epilogue", "variant", "k_multiple") if name in kind.to_json()] for kind in kinds]
    assert told == [["epilogue", "k_multiple"], ["k_multiple"], ["variant", "k_multiple"]]
    any_k = kinds[0]._replace(n_multiple=1, k_multiple=1)
    assert Kind.from_json(any_k.to_json()) == any_k
    assert not {"n_multiple", "k_multiple"} & any_k.to_json().keys()
    with pytest.raises(ProblemError, match="k_multiple: 0 is not a positive integer"):
        Kind.from_json({**kinds[0].to_json(), "k_multiple": 0})
