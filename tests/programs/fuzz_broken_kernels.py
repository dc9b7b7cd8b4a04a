"""Says what becomes of generated graphs if each row's kernel leaves the last row of its result unwritten.

``python fuzz_broken_kernels.py SEED FIRST END``. A graph whose GEMM is padded to more rows does not notice.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from tests.interpreter.device import interpreter_cuda


def statuses(seed: int, numbers: range) -> list[str]:
    """The outcome of each case."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.utils import fresh_cache

    from tests.fuzzing.cases import draw_graph_case
    from tests.fuzzing.graph_check import executed_graph

    right = AsyncCompile.triton

    def wrong(self: Any, name: str, source: str, **options: Any) -> Any:
        if "triton_heuristics.template(" in source:
            source = source.replace("mask = (idx_m < M)", "mask = (idx_m < M - 1)")
        return right(self, name, source, **options)

    with mock.patch.object(AsyncCompile, "triton", wrong), tempfile.TemporaryDirectory() as directory, fresh_cache():
        return [executed_graph(draw_graph_case(seed, number), "cuda", Path(directory)).status for number in numbers]


if __name__ == "__main__":
    with interpreter_cuda():
        print(json.dumps(statuses(int(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3])))))
