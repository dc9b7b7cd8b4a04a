"""Records generated kernels and measures them on the interpreter's device, for tests/interpreter/test_generated.py.

``python collect_generated.py DIRECTORY``: records, a dataset and a table go there. Prints JSON. Times are those of a
device that takes a millisecond for everything; results are checked.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.programs.collect_padded import timing_device


def main(directory: Path) -> dict[str, Any]:
    """For each problem, its configs with their times or reasons; what is skipped; and how many rows are built."""
    import torch
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache
    from torch.nn import functional

    import diode_lut
    from diode_lut.build import build
    from diode_lut.dataset import read_dataset
    from diode_lut.hook.patches import install_recording
    from diode_lut.measure.collector import InProcess, collect
    from diode_lut.measure.problems import read_kernels
    from diode_lut.probe import RECORDING

    def function(a: Any, b: Any, c: Any, d: Any, w: Any) -> Any:
        return functional.layer_norm(a, (70,), w, w), b.sum(), c.add_(1), d.transpose(1, 2) + d.relu()

    records = directory / "kernels"
    records.mkdir()
    os.environ[RECORDING] = str(records)
    install_recording(config)  # type: ignore[arg-type]
    shapes = ((21, 70), (50, 40), (9, 100), (3, 64, 64), (70,))
    tensors = [torch.randn(shape, device="cuda") for shape in shapes]
    with fresh_cache(), diode_lut.config.patch(tables=(), tiers=("user",)):
        torch.compile(function)(*tensors)
    kernels = read_kernels(records)
    looped = next(each for each in kernels if each.problem.r == 2000)
    wrong = [looped._replace(source=looped.source.replace("tmp0 = ", "tmp0 = R0_BLOCK + "))]
    found: dict[str, Any] = {"skipped": {}}
    for name, measured in (("right", kernels), ("wrong", wrong)):
        path = directory / f"{name}.msgpack"
        for each in collect((), path, device="cuda", method="sweep", executor=InProcess(), kernels=measured):
            for outcome in each.outcomes:
                if outcome.record is None:
                    found["skipped"][str(outcome.problem)] = outcome.reason
        found[name] = {
            str(record.problem): {str(each.config): each.ns or each.reason for each in record.timings}
            for record in read_dataset(path)
        }
    found["rows"] = [str(row.op) for row in build([read_dataset(directory / "right.msgpack")]).table.entries]
    found["code"] = b"tl." in (directory / "right.msgpack").read_bytes()
    return found


if __name__ == "__main__":
    with timing_device():
        found = main(Path(sys.argv[1]))
    print(json.dumps(found))
