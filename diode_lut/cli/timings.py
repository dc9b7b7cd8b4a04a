"""``collect``, ``import`` and ``export``: measure timings, and exchange them with other tools."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from diode_lut.cli import arguments
from diode_lut.cli.output import (
    ANY_OUTPUT,
    DATASET,
    STOPPED,
    TABLE_KIND,
    Minutes,
    Output,
    in_a_file,
    is_standard,
    output_option,
    require_kind,
    say,
    write,
)
from diode_lut.errors import CollectError, ExchangeError, counted, printable
from diode_lut.formats import FORMATS
from diode_lut.hardware import detect_hardware
from diode_lut.measure import METHODS, SETS
from diode_lut.problem import GEMMS, VARIANTS
from diode_lut.process import interrupt_on_signals

if TYPE_CHECKING:
    from diode_lut.dataset import Dataset, Record
    from diode_lut.measure.collector import Pass
    from diode_lut.problem import Problem


def _without_variants(_: click.Context, __: click.Parameter, ops: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ops with problems that can be drawn. BadParameter for others."""
    for op in ops:
        if op in VARIANTS:
            raise click.BadParameter(f"{op} has variants, which are not drawn: list its problems for --problems")
    return ops


@click.command("collect")
@click.option(
    "--problems",
    "problem_file",
    type=arguments.FILE,
    metavar="SET|FILE",
    help=f"A shipped set ({', '.join(SETS)}), the most useful problems first; or a file: a JSON list of "
    '{"op", "M", "N", "K", "dtype"}, optionally "B", "layout", "align" and "epilogue"; a dataset; a table; or a '
    "receipt, whose misses on devices like this one are measured.",
)
@arguments.KERNELS
@click.option("--random", "count", metavar="N", type=click.IntRange(min=1), help="Draw N problems at random instead.")
@click.option(
    "--log-normal",
    is_flag=True,
    help="Draw M, N and K log-normally, as in real models; else log-uniformly from 1 to 16384.",
)
@click.option("--seed", type=int, default=0, help="The same seed draws the same problems.")
@click.option(
    "--op",
    "ops",
    type=arguments.OP,
    multiple=True,
    default=GEMMS,
    callback=_without_variants,
    help="Draw from these ops: those without variants.",
)
@click.option(
    "--dtype", "dtypes", type=arguments.DTYPE, multiple=True, default=("bfloat16",), help="Draw from these types."
)
@click.option(
    "--layout",
    "layouts",
    type=arguments.LAYOUT,
    multiple=True,
    default=("nn", "nt"),
    help="Draw from these layouts of A and B: n is row-major, t column-major.",
)
@click.option(
    "--out",
    "--output",
    "-o",
    "path",
    metavar="OUT",
    type=Output(DATASET, ".msgpack", ".zst", dir_okay=True, allow_dash=False),
    required=True,
    help="The dataset; if it exists, problems that it holds are skipped and the others appended. In a directory, it is "
    "the file named after the hardware and the software.",
)
@click.option(
    "--method",
    type=click.Choice(tuple(METHODS)),
    help="autotune: Inductor's own autotuner, one problem at a time. sweep: all kernels quickly, then the best "
    "carefully.  [default: sweep on CUDA, else autotune]",
)
@click.option(
    "--search-space",
    type=click.Choice(("default", "exhaustive")),
    default="default",
    help="How many kernels are tried: by autotune about 20, or about 1,500; by a sweep up to 150, which earlier sweeps "
    "on the same architecture found to matter, or all, up to 700.",
)
@arguments.DEVICE
@click.option("--budget", type=arguments.MINUTES, help="Begin no problem after this time.")
@click.option(
    "--table",
    "table_file",
    type=arguments.TABLE,
    help="Time only this table's answers and aten, as carefully as the final stage of a sweep, for `evaluate` to show "
    "the table's benefit on this machine.",
)
@click.pass_context
def collect_command(
    context: click.Context,
    /,
    problem_file: arguments.Typed | None,
    kernel_directory: Path | None,
    count: int | None,
    path: Path,
    method: str | None,
    search_space: str,
    device: str | None,
    budget: float | None,
    table_file: arguments.Typed | None,
    **drawing: Any,
) -> int:
    """Time Inductor's kernels for GEMMs, and write a dataset.

    Each problem is on disk as soon as it is measured. After Ctrl-C or a crash, run the same command again. The tensors
    of a random problem take at most 2 GiB together.
    """
    if (problem_file is None) == (count is None) and (problem_file or kernel_directory is None):
        raise click.UsageError("give either --problems or --random")
    problems: list[Problem] = []
    if count is not None:
        from diode_lut.measure.problems import random_problems

        problems = random_problems(count, **drawing)
    elif problem_file is not None:
        for name in drawing:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name.rstrip('s').replace('_', '-')} goes with --random only")
        problems = arguments.problems_of(problem_file, lambda: detect_hardware("cuda" if device == "all" else device))
    kernels = arguments.kernels_of(kernel_directory)
    arguments.require_inductor("collect")
    interrupt_on_signals()  # so that a killed run removes its temporary caches
    from diode_lut.measure.collector import collect
    from diode_lut.table import read_bytes, table_of

    passes = collect(
        problems,
        path,
        device=device,
        method=method,
        search_space=search_space,
        budget_s=math.inf if budget is None else budget * 60,
        table=None if table_file is None else table_of(table_file.path, table_file.read(read_bytes)),
        kernels=kernels,
    )
    tallies: list[Counter[str]] = []
    try:
        with closing(passes):
            for each in passes:
                tallies.append(Counter())
                _show(each, tallies[-1])
                if tallies[-1].keys() != {"left"}:
                    say(_summary(each, tallies[-1]))
    except KeyboardInterrupt:
        if tallies and tallies[-1]["left"]:
            say(_summary(each, tallies[-1]))
        say("stopped: run the same command again to go on", err=True)
        return STOPPED
    left = sum(tally["left"] for tally in tallies)
    if left:
        say(f"{counted(left, 'problem')} left: run the same command again to go on", err=True)
    elif not any(tally["measured"] + tally["present"] for tally in tallies):
        raise CollectError("none of the problems could be measured")
    return arguments.say_losses([each.dataset] if tallies else [])


def _show(each: Pass, tally: Counter[str]) -> None:
    """Run a pass, with a progress bar on a terminal or a line a minute, and count the outcomes in ``tally``."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    rate = TextColumn("{task.fields[timings]} timings, {task.fields[per_minute]:.0f} a minute, left")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    begin, minutes = time.monotonic(), Minutes()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(each.stage, total=each.total, timings=0, per_minute=0.0)
        tally["left"] = each.total
        for outcome in each.outcomes:
            timings = outcome.record.timings if outcome.record is not None else ()
            tally["left"] -= 1
            tally[outcome.status] += 1
            tally["timings"] += len(timings)
            tally["tried"] += len({timing.config for timing in timings})
            tally["failed"] += sum(timing.ns is None for timing in timings)
            tally["ignored"] += outcome.ignored
            if outcome.status == "skipped":
                console.print(printable(f"skipped {outcome.problem}: {outcome.reason}"))
            per_minute = 60 * tally["timings"] / (time.monotonic() - begin)
            progress.update(task, advance=1, timings=tally["timings"], per_minute=per_minute)
            if not console.is_terminal:
                done = f"{each.stage}: {each.total - tally['left']} of {each.total} problems"
                minutes.say(f"{done}, {tally['timings']} timings, {per_minute:.0f} a minute")


def _summary(each: Pass, tally: Counter[str]) -> str:
    ignored = f"; {counted(tally['ignored'], 'candidate')} ignored, because no config can express them"
    return printable(
        f"{each.dataset.path}: {each.stage}: {counted(tally['measured'], 'problem')} measured, "
        f"{tally['present']} already there, {tally['skipped']} skipped; {counted(tally['tried'], 'config')} tried, "
        f"{tally['failed']} of them failed{ignored if tally['ignored'] else ''}"
    )


_EXPORTED = tuple(name for name, each in FORMATS.items() if each.write)


def _formats(names: Iterable[str]) -> str:
    lines = (f"  {name}: {FORMATS[name].description} ({FORMATS[name].holds})" for name in names)
    return "\n".join(("\b", "Formats:", *lines))


_LAYOUT = click.option(
    "--layout",
    type=arguments.LAYOUT,
    help="The layout of A and B, where the file cannot say it.  [default: nn, but none for timings]",
)


@click.command("import", epilog=_formats(FORMATS))
@click.argument("name", metavar="FORMAT", type=click.Choice(tuple(FORMATS)))
@click.argument("source", metavar="IN", type=arguments.FILE)
@output_option(type=ANY_OUTPUT, help="The table or dataset to write.")
@click.option(
    "--hardware", metavar="NAME", help="The hardware that was measured: a table's name or its GPU's, or NAME,ARCH,SMS."
)
@click.option("--op", type=arguments.OP, help="The op of all GEMMs, where the file does not say it.")
@click.option(
    "--dtype", type=arguments.DTYPE, help="The type of the inputs, where the file does not say it; or tf32 for float32."
)
@_LAYOUT
def import_command(
    name: str,
    source: arguments.Typed,
    output: Path,
    hardware: str | None,
    op: str | None,
    dtype: str | None,
    layout: str | None,
) -> None:
    """Convert another tool's table or timings, or your own timings.

    Timings become a dataset, from which build makes a table. Skipped parts are counted, with the reason.
    """
    from diode_lut.dataset import write_stream
    from diode_lut.formats import read
    from diode_lut.formats.content import Facts
    from diode_lut.table import placed, to_bytes

    if not is_standard(output) and output.exists() and output.stat().st_size:
        raise ExchangeError(f"{output}: exists already, and an import adds nothing to a file: name another one")
    facts = Facts(arguments.hardware_of(hardware) if hardware is not None else None, op, dtype, layout, source.contents)
    content, skipped = read(name, source.path, facts)
    count, problems = 0, set()

    def tallied(records: Iterable[Record]) -> Iterator[Record]:
        nonlocal count
        for record in records:
            count += len(record.timings)
            problems.add(record.problem)
            yield record
        if not count:
            raise ExchangeError("nothing in it could be imported")

    kind = Output(DATASET, ".msgpack", ".zst") if isinstance(content, tuple) else Output(TABLE_KIND, ".json")
    kind.convert(output, None, None)
    try:
        if isinstance(content, tuple):
            with in_a_file(output) as path:
                write_stream(path, content.header, tallied(content.records))
            taken = f"{counted(count, 'timing')} of {counted(len(problems), 'problem')}"
        else:
            if not content.entries:
                raise ExchangeError("nothing in it could be imported")
            write(output, to_bytes(placed(content, output)))
            taken = counted(len(content.entries), "row")
    finally:
        _say_skipped(skipped)
    say(printable(f"{output}: {taken}"), err=is_standard(output))


@click.command("export", epilog=_formats(_EXPORTED))
@click.argument("name", metavar="FORMAT", type=click.Choice(_EXPORTED))
@click.argument("typed", metavar="IN", type=arguments.TABLE)
@output_option(type=ANY_OUTPUT, help="The file to write.")
@click.option(
    "--problems",
    type=arguments.FILE,
    metavar="SET|FILE",
    help="A set or file as collect takes it: export the table's answers for these problems.  [default: those with a "
    "row of their own]",
)
@click.option(
    "--dtype",
    type=arguments.DTYPE,
    help="tf32 exports a table's answers for tf32 instead of float32, where the file cannot say which.",
)
@_LAYOUT
def export_command(
    name: str,
    typed: arguments.Typed,
    output: Path,
    problems: arguments.Typed | None,
    dtype: str | None,
    layout: str | None,
) -> int:
    """Convert a table or dataset for another tool.

    Other tools have no ranges, so a table's answers for single problems are exported. Skipped parts are counted, with
    the reason.
    """
    from diode_lut.formats import write_table, write_timings
    from diode_lut.formats.content import Facts, exact_problems

    require_kind(output, name)
    skipped: Counter[str] = Counter()
    datasets: list[Dataset] = []
    if FORMATS[name].holds == "timings":
        datasets = arguments.read_datasets([typed])
        data = write_timings(name, datasets[0], output)
    else:
        table = arguments.read_whole_table(typed)
        wanted = exact_problems(table, skipped) if problems is None else arguments.problems_of(problems)
        data, others = write_table(name, table, wanted, Facts(dtype=dtype, layout=layout))
        skipped += others
    write(output, data)
    say(printable(f"{output}: {len(data)} bytes"), err=is_standard(output))
    _say_skipped(skipped)
    return arguments.say_losses(datasets)


def _say_skipped(skipped: Counter[str]) -> None:
    for reason, count in sorted(skipped.items()):
        say(printable(f"  skipped: {count}: {reason}"), err=True)
