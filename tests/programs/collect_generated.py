"""Records generated kernels and measures them on the interpreter's device, for tests/interpreter/test_generated.py.

``python collect_generated.py DIRECTORY``: records, a dataset and a table go there. Prints JSON. Times are those of a
device that takes a millisecond for everything; results are checked.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.programs.collect_padded import timing_device
from tests.programs.convolve import HARDWARE


def main(directory: Path) -> dict[str, Any]:
    """For each problem, its configs with their times or reasons; what is skipped; and how many rows are built."""
    import torch
    from torch._inductor import config
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.utils import fresh_cache
    from torch.nn import functional

    import diode_lut
    from diode_lut.build import build
    from diode_lut.contribute.judge import comparable, verify
    from diode_lut.dataset import read_dataset
    from diode_lut.hook.patches import install_recording
    from diode_lut.measure.collector import InProcess, collect
    from diode_lut.measure.problems import read_kernels
    from diode_lut.probe import RECORDING
    from diode_lut.table import read_table

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

    def precompiled(self: Any, *_: object, **__: object) -> None:
        """What Triton says of kernels, all of which spill, except those of four warps."""
        self.launchers = [SimpleNamespace(n_spills=int(each.num_warps != 4)) for each in self.configs]

    for name, measured in (("right", kernels), ("wrong", wrong), ("spilling", [looped])):
        path = directory / f"{name}.msgpack"
        spilling = (
            mock.patch.object(CachingAutotuner, "precompile", precompiled) if name == "spilling" else nullcontext()
        )
        with spilling:
            for each in collect((), path, device="cuda", method="sweep", executor=InProcess(), kernels=measured):
                for outcome in each.outcomes:
                    if outcome.record is None:
                        found["skipped"][str(outcome.problem)] = outcome.reason
        found[name] = {
            str(record.problem): {str(each.config): each.ns or each.reason for each in record.timings}
            for record in read_dataset(path)
        }
    verified = directory / "verified.json"
    rows = [row(each.problem.to_json()) for each in kernels]
    verified.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": rows}), encoding="utf-8")
    table = read_table(verified)
    gains = comparable(table, kernels=kernels)
    found["comparable"] = len(gains)
    drift = verify(table, gains, device="cuda", method="sweep", kernels=kernels)
    found["drift"] = {str(each.problems[0]): each.measured for each in drift.rows}
    found["rows"] = [str(row.op) for row in build([read_dataset(directory / "right.msgpack")]).table.entries]
    found["code"] = b"tl." in (directory / "right.msgpack").read_bytes()
    return found


def row(problem: dict[str, Any]) -> dict[str, Any]:
    """A row for a problem, with a config that can run, except that a short r is kept, and not looped over."""
    config: dict[str, Any] = {"template": "pointwise", "block_x": 64, "num_warps": 2}
    if problem["op"] == "reduction":
        config = {"template": "looped_reduction", "block_x": 1, "block_r": 4096, "num_warps": 4}
    elif problem["variant"] != "flat":
        config["block_y"] = 32
    fields = {name.lower(): [value] * 2 if type(value) is int else value for name, value in problem.items()}
    return {**fields, "configs": [{**config, "gain_permille": 1250}]}


if __name__ == "__main__":
    with timing_device():
        found = main(Path(sys.argv[1]))
    print(json.dumps(found))
