"""Programs of others, with and without diode_lut: do they run, are results the same, and what is faster or slower.

Each program of ``modelbench/real_*.py`` runs as its users write it, on random weights, in a fresh process for each way,
with empty caches. The processes take turns until the interval of the speed-up is narrower than 1 %, or the time of the
program is up. Results are appended to ``--out``, a JSON line for each program; run again, it goes on with the others.
``--table`` prints them, ``--draw`` makes a picture.
"""

import argparse
import os
import sys
from pathlib import Path

from modelbench.labels import DEFAULT, DIODE_LUT, OFF, Label, parse_label
from modelbench.real_programs import programs
from modelbench.real_table import draw, markdown
from modelbench.real_turns import Plan, measure
from modelbench.records import read


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, nargs="+", required=True, metavar="FILE", help="results, a JSON line each")
    names = list(programs())
    parser.add_argument("--programs", default=",".join(names), help=f"some of {','.join(names)}")
    parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=SETTING=VALUE,...", help="one more way, with settings"
    )
    parser.add_argument(
        "--twice", default="", metavar="PROGRAM,...", help="compile these in two processes for each way"
    )
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="spread the programs over the first N GPUs")
    parser.add_argument("--at-once", type=int, default=4, metavar="N", help="programs that compile at once on a GPU")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop then; the next run continues")
    parser.add_argument("--turns", type=float, default=8.0, metavar="SECONDS", help="for turns of steps, and kernels")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="keep a trace of each program")
    parser.add_argument("--caches", type=Path, default=Path("/tmp/diode-lut-programs"), help="for Inductor's caches")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny versions of the programs, to try this out")
    parser.add_argument("--table", action="store_true", help="print a table of the results")
    parser.add_argument("--draw", type=Path, metavar="SVG", help="draw the results")
    options = parser.parse_args()
    if options.table or options.draw:
        records = [*read(options.out)]
        if options.table:
            print(markdown(records))
        if options.draw:
            options.draw.write_text(draw(records), encoding="utf-8")
        return
    ways = [Label(DEFAULT, settings=OFF), Label(DIODE_LUT), *map(parse_label, options.label)]
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    plan = Plan(
        names=[name for name in options.programs.split(",") if programs()[name]],
        ways=ways,
        twice=options.twice.split(","),
        out=options.out[0],
        caches=options.caches.absolute(),
        traces=options.traces and options.traces.absolute(),
        device=options.device,
        tiny=options.tiny,
        gpus=options.gpus,
        at_once=options.at_once,
        seconds=options.seconds,
        turns_s=options.turns,
    )
    sys.exit(measure(plan))


if __name__ == "__main__":
    main()
