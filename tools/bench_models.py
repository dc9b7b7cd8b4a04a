"""The benefit of diode_lut for whole models: compile times and run times, beside default mode and max-autotune.

Each compile is cold and has a process and an empty cache of its own. Then one process loads all compiles of a model
from these caches, captures each in a CUDA graph, and times the graphs in rounds, with a cold L2 cache. Results are
appended to the file ``--out``; what it already has is not measured again. ``--table`` prints it, ``--draw`` makes a
picture.
"""

import argparse
import sys
from pathlib import Path

from modelbench.labels import LABELS, parse_label
from modelbench.models import MODELS, ON_REQUEST
from modelbench.picture import draw
from modelbench.records import read
from modelbench.scheduling import Plan, measure
from modelbench.summary import summarize
from modelbench.table import markdown


def main() -> None:
    """Measure, or print or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, nargs="+", required=True, metavar="FILE", help="results, a JSON line each")
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {','.join(MODELS)}")
    names = ",".join(label.name for label in LABELS)
    parser.add_argument("--labels", default=names, help=f"some of {names}")
    parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=SETTING=VALUE,...", help="one more, with other settings"
    )
    parser.add_argument("--skip-max-autotune", action="store_true")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="compiles per model and label")
    parser.add_argument("--autotuned-repetitions", type=int, metavar="N", help="the same for max-autotune")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="spread the work over the first N GPUs")
    parser.add_argument("--processes", type=int, default=1, metavar="K", help="how many per GPU; compiles take turns")
    parser.add_argument("--share", action="store_true", help="compiles that autotune nothing do not take turns")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop then; the next run continues")
    parser.add_argument("--timeout", type=int, default=400, metavar="SECONDS", help="for each compile, and each model")
    parser.add_argument("--compile-only", action="store_true", help="do not run what is compiled")
    parser.add_argument("--retry", action="store_true", help="try again what failed in earlier runs")
    parser.add_argument("--cold-workers", action="store_true", help="do not wait for Inductor's compile workers")
    parser.add_argument("--caches", type=Path, default=Path("/tmp/diode-lut-models"), help="for Inductor's caches")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny versions of the models, to try this out")
    parser.add_argument("--table", action="store_true", help="print a table of the results")
    parser.add_argument("--draw", type=Path, metavar="SVG", help="draw the results")
    options = parser.parse_args()
    if options.table or options.draw:
        models = summarize(read(options.out))
        if options.table:
            print(markdown(models))
        if options.draw:
            options.draw.write_text(draw(models), encoding="utf-8")
        return
    known = {label.name: label for label in LABELS}
    labels = [known[name] for name in options.labels.split(",") if name]
    labels += map(parse_label, options.label)
    if options.skip_max_autotune:
        labels = [label for label in labels if not label.autotunes]
    autotuned = options.autotuned_repetitions or options.repetitions
    plan = Plan(
        models=[name for name in options.models.split(",") if (MODELS | ON_REQUEST)[name]],
        labels={label: autotuned if label.autotunes else options.repetitions for label in labels},
        out=options.out[0],
        caches=options.caches.absolute(),
        device=options.device,
        tiny=options.tiny,
        processes=options.processes,
        share=options.share,
        seconds=options.seconds,
        timeout=options.timeout,
        retry=options.retry,
        warm=not options.cold_workers,
        runs=not options.compile_only,
        gpus=options.gpus,
    )
    sys.exit(measure(plan))


if __name__ == "__main__":
    main()
