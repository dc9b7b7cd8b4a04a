import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.select_algorithm import get_algorithm_selector_cache

from diode_lut.errors import CollectError
from diode_lut.measure.autotune import Round, autotune
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config

CPP = Config("cpp_gemm")
BMM = Problem("bmm", "float32", "nn", 16, 2, 32, 32, 32)


@pytest.fixture(autouse=True)
def _temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def rounds_of_bmm() -> list[Round]:
    return autotune(torch.bmm, (torch.randn(2, 32, 32), torch.randn(2, 32, 32)), search_space="default", freeze=False)


def test_every_candidate_gets_a_time(tmp_path: Path) -> None:
    """A bmm on the CPU is timed several times with each of aten and the C++ template; nothing is left behind."""
    listeners = get_algorithm_selector_cache()
    before = [*listeners.preprocessing_fns], [*listeners.feedback_saver_fns], os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    (only,) = rounds_of_bmm()
    after = [*listeners.preprocessing_fns], [*listeners.feedback_saver_fns], os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    assert only.problem == BMM
    assert Counter(timing.config for timing in only.timings) == {ATEN: 7, CPP: 7}
    assert all(timing.ns is not None and timing.reason is None for timing in only.timings)
    assert before == after
    assert not list(tmp_path.glob("diode-lut-*"))


def test_candidate_that_does_not_compile_is_recorded_with_the_reason() -> None:
    """Without a working C++ compiler the C++ template fails with ``compile``, and aten still has its time."""
    with inductor_config.patch({"cpp.cxx": (None, "/bin/false")}):
        (only,) = rounds_of_bmm()
    *_, aten, cpp = only.timings
    assert len(only.timings) == 8
    assert aten.ns is not None
    assert (cpp.config, cpp.ns, cpp.reason) == (CPP, None, "compile")


def test_single_candidate_is_timed_too() -> None:
    """On the CPU baddbmm has no candidate but aten, which Inductor takes without a benchmark; it gets a time."""
    tensors = (torch.randn(2, 32, 32), torch.randn(2, 32, 32), torch.randn(2, 32, 32))
    (only,) = autotune(torch.baddbmm, tensors, search_space="default", freeze=False)
    assert only.problem == BMM._replace(op="baddbmm")
    assert [timing.config for timing in only.timings] == [ATEN]
    assert only.timings[0].ns is not None


def test_what_is_no_product_has_no_rounds() -> None:
    """A function without a matmul is compiled, and nothing is reported for it."""
    assert autotune(torch.sin, (torch.randn(8),), search_space="default", freeze=False) == []


def test_what_does_not_compile_is_one_line(tmp_path: Path) -> None:
    """A function that fails gives a CollectError of one line, and leaves no cache behind."""
    with pytest.raises(CollectError, match="does not compile or run: ") as caught:
        autotune(torch.mm, (torch.randn(2, 3), torch.randn(2, 3)), search_space="default", freeze=False)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("diode-lut-*"))
