"""Says what becomes of generated cases if each row's kernel leaves the last row, or element, of its result unwritten.

``python fuzz_broken_kernels.py KIND SEED FIRST END``. A graph whose GEMM is padded to more rows does not notice.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from tests.interpreter.device import interpreter_cuda

MASKS = ("mask = (idx_m < M", "mask = (idx_m < Q_LEN", "mask = (offs_am[:, None] < m_size", "xmask = xindex < xnumel")
"""How templates, and generated kernels, say which rows or elements they store, or load and store."""


def statuses(kind: str, seed: int, numbers: range) -> list[str]:
    """The outcome of each case of a kind, as tools/fuzz_hook.py names it."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.utils import fresh_cache

    import diode_lut
    from tests.fuzzing.cases import draw_graph_case
    from tests.fuzzing.graph_check import executed_graph
    from tests.fuzzing.kinds import OP_KINDS

    right = AsyncCompile.triton

    def wrong(self: Any, name: str, source: str, **options: Any) -> Any:
        ours = re.search(r"triton_heuristics\.(template|fixed_config)\(", source)
        if ours and diode_lut.config.policy != "off":
            for mask in MASKS:
                source = source.replace(mask, f"{mask} - 1")
        return right(self, name, source, **options)

    with mock.patch.object(AsyncCompile, "triton", wrong), tempfile.TemporaryDirectory() as directory, fresh_cache():
        found = []
        for number in numbers:
            if kind in OP_KINDS:
                case = OP_KINDS[kind].draw(seed, number, small=True)
                found.append(OP_KINDS[kind].executed(case, "cuda", Path(directory)))
            else:
                found.append(executed_graph(draw_graph_case(seed, number), "cuda", Path(directory)))
        return [outcome.status for outcome in found]


if __name__ == "__main__":
    with interpreter_cuda():
        print(json.dumps(statuses(sys.argv[1], int(sys.argv[2]), range(int(sys.argv[3]), int(sys.argv[4])))))
