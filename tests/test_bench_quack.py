"""The comparison with QuACK's GEMMs, as far as it goes without the package and a GPU."""

import pytest
import torch
from bench_quack import summary
from modelbench.epilogues import MODELS, Gemm, functions, operands
from torch.nn import functional

KINDS = sorted({(gemm.epilogue, gemm.norm) for layer in MODELS.values() for gemm, _ in layer.values()})


@pytest.mark.parametrize(("epilogue", "norm"), KINDS)
def test_what_follows_the_plain_gemm_completes_it(epilogue: str, norm: str) -> None:
    gemm = Gemm(8, 16, 24, epilogue, norm)
    o = operands(gemm, "cpu")
    whole, rest, normed = functions(gemm)
    y = functional.linear(o["x"], o["w"], o.get("bias"))
    assert y.shape == o["y"].shape
    results = whole(o)
    assert all(result.shape == o["out"].shape for result in results)
    assert all(map(torch.equal, results, rest(y, o)))
    if norm and not norm.startswith("only"):
        assert all(map(torch.equal, results, normed(results[0], o)))


def test_rows_of_gate_and_up_take_turns() -> None:
    o = operands(Gemm(8, 16, 24, "joined-silu"), "cpu")
    assert torch.equal(torch.cat((o["turns"][::2], o["turns"][1::2])), o["w"])


def test_summary_weighs_gemms_and_orders_configs() -> None:
    model, layer = next(iter(MODELS.items()))
    times = {"aten": 10.0, "triton": 8.0, "bias-gelu a": 7.0, "bias b": 9.0}
    screened = {"bias-gelu a": [7.0, 7.0], "bias-gelu c": [9.0, 9.0], "bias b": [9.0, 9.0], "bias a": [18.0, 18.0]}
    records = [
        {"gemm": f"{model}: {name}", **gemm._asdict(), "cold": times, "in graph": times, "screened": screened}
        for name, (gemm, _) in layer.items()
    ]
    text = summary(records)
    count = sum(number for _, number in layer.values())
    sums = " | ".join(f"{count * us:.1f}" for us in (10, 8, 7, 8, 7))
    assert f"| {model} | in graph | {sums} | 0.875 |" in text
    assert "1. a: 1.500 of the best\n2. b: 1.000 of the best" in text
    assert f"| {model} |" not in summary(records[:1])
