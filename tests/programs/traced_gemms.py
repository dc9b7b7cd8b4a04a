"""Traces a compiled graph on the interpreter's device; tests/interpreter/test_traces.py reads what it prints.

``python traced_gemms.py DIRECTORY [fixed]``: a table and the trace go there. Prints the GEMMs and the generated kernels
that are found in the trace with their number of calls and their kernel. With ``fixed``, the table decides about the
generated kernels.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.interpreter.device import interpreter_cuda
from tests.programs.concat import ROWS
from tests.programs.convolve import HARDWARE
from tests.programs.generate import POINTWISE, REDUCTIONS


def main(directory: Path, kind: str = "") -> dict[str, list[Any]]:
    """The GEMMs and the generated kernels in the trace."""
    import torch
    from torch._inductor.utils import fresh_cache

    import diode_lut
    from diode_lut import probe
    from diode_lut.hook.patches import install_probe
    from diode_lut.programs.times import graph_times, read_traces

    table = directory / "rows.json"
    fixed = [*POINTWISE, {"op": "reduction", "configs": [REDUCTIONS["persistent"]]}]
    entries = [*ROWS, *(fixed if kind == "fixed" else [])]
    table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": entries}), encoding="utf-8")
    os.environ[probe.VARIABLE] = str(directory)
    install_probe(torch._inductor.config)

    def function(x: Any, w: Any, heads: Any) -> Any:
        tiled = heads.detach().transpose(1, 2) + 1 / (heads.abs() + 2)
        return (x @ w).relu(), torch.bmm(heads, heads), heads.mean(-1), w.sum(0), tiled, x.tanh()

    compiled = torch.compile(function, dynamic=False)
    resized = torch.compile(lambda x, w: x @ w)
    x, rows, w, heads = (torch.randn(shape, device="cuda") for shape in ((40, 24), (33, 24), (24, 56), (2, 24, 24)))
    torch._dynamo.mark_dynamic(rows, 0)
    with fresh_cache(), diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
        for _ in range(3):
            compiled(x, w, heads)
            resized(rows, w)
    probe._write(os.getpid())
    times = graph_times(read_traces([directory / f"{os.getpid()}.trace.json"]))
    assert times is not None
    return {name: [each.calls, each.kernel] for name, each in (times.gemms | times.generated).items()}


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]), *sys.argv[2:])
    print(json.dumps(answer))
