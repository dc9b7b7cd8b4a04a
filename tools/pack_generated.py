"""Writes the times of generated kernels as a dataset, of which ``build`` makes rows.

``python tools/pack_generated.py --out tables/datasets/generated/nvidia-h100.msgpack.zst --hardware
tables/nvidia-h100.json --date 2026-11-27`` reads the file of bench_generated.py. Each kernel is a record. Kernels with
the same problem are records of this problem. Kernels of models that are kept away are left out.
"""

import argparse
from pathlib import Path

from modelbench.records import read
from score_generated import DATA, Data, timings

from diode_lut.dataset import DatasetWriter, Header, Record, Timing
from diode_lut.table import read_hardware


def main() -> None:
    """Write the dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hardware", type=Path, required=True, help="a table for the device")
    parser.add_argument("--date", required=True, help="when the kernels were measured: YYYY-MM-DD")
    options = parser.parse_args()
    about = next(read([options.data]))
    *_, cuda = about["torch"].partition("+cu")
    header = Header(
        read_hardware(options.hardware),
        torch=about["torch"],
        triton=about["triton"],
        cuda=f"{cuda[:-1]}.{cuda[-1]}",
        benchmarker="tools/bench_generated.py, cold and warm L2 cache",
        measured_on=options.date,
    )
    with DatasetWriter(options.out, header) as writer:
        data = Data(options.data)
        for number, (problem, times) in timings(data).items():
            if not data.kept_away[number]:
                writer.append(Record(problem, tuple(Timing.of(config, us * 1000) for config, us in times.items())))


if __name__ == "__main__":
    main()
