"""``run``, ``tune`` and ``compare``: the user's own programs, without an edit."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import click

from diode_lut.cli.arguments import MINUTES, SECONDS, Typed, read_whole_table
from diode_lut.cli.output import COMPARISON, PAGE, RECEIPT, TABLE_KIND, Output, require_kind, say
from diode_lut.errors import SettingError, as_command, counted, install_command
from diode_lut.files import require_writable, write_atomically
from diode_lut.probe import RECORDING
from diode_lut.process import interrupt_on_signals
from diode_lut.settings import USER, autoregister, config

if TYPE_CHECKING:
    from diode_lut.programs.comparison import Loser

_AS_TYPED = {"ignore_unknown_options": False, "allow_interspersed_args": False}  # options end where the program begins

_COMMAND = click.argument(
    "command", metavar="[--] PROGRAM [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED
)
_TABLES = click.option(
    "--table",
    "tables",
    metavar="TABLE",
    multiple=True,
    help="A table or model of your own, by path or name, asked before those of DIODE_LUT_TABLES; can be repeated.",
)
_STOP_AFTER = click.option(
    "--stop-after", type=SECONDS, help="Interrupt the program after this time in each run, as by Ctrl-C."
)


@click.command("run", context_settings=_AS_TYPED)
@_TABLES
@click.option(
    "--receipt",
    type=Output(RECEIPT, allow_dash=False),
    help="Where to write the receipt.  [default: DIODE_LUT_RECEIPT, else diode-lut-receipt.json]",
)
@click.option("--no-receipt", is_flag=True, help="Write no receipt, only the summary.")
@click.option(
    "--kernels",
    "kernel_directory",
    metavar="DIR",
    type=Output(file_okay=False, dir_okay=True, allow_dash=False),
    help="Record the kernels that Inductor generates in this directory, for `adopt`, `verify` and `collect`. Inductor "
    "chooses their configs in this run.",
)
@_COMMAND
@click.pass_context
def run_command(
    ctx: click.Context,
    command: tuple[str, ...],
    tables: tuple[str, ...],
    receipt: Path | None,
    no_receipt: bool,
    kernel_directory: Path | None,
) -> int:
    """Run a program with tuned kernels, without an edit.

    The hook is armed in all processes of the program. At the end a summary says how many GEMMs tables and models
    answered, and names the misses. The exit code is the program's: 128 plus the signal's number if a signal ended it,
    127 if there is no such program, 126 if it cannot be started.
    """
    from diode_lut.programs.run import armed, run_program, run_with_receipt, summary

    if receipt is not None and no_receipt:
        raise click.UsageError("--receipt and --no-receipt exclude each other")
    environment = _with_tables(tables)
    if kernel_directory is not None:
        kernel_directory.mkdir(parents=True, exist_ok=True)
        environment |= {RECORDING: str(kernel_directory.absolute()), "DIODE_LUT_GENERATED": "0"}
    try:
        gettempdir()
    except FileNotFoundError:
        _tell("no receipt and no summary: there is no directory for temporary files that can be written (TMPDIR)")
        return run_program(command, armed(environment)).code
    destination = receipt
    if not receipt and not no_receipt:
        default = Path(os.environ.get("DIODE_LUT_RECEIPT") or "diode-lut-receipt.json").absolute()
        destination = default.with_name(default.name.replace("%p", str(os.getpid())))  # as a program's own process
    try:
        if destination is not None:
            require_kind(destination, RECEIPT)
            require_writable(destination)
    except OSError as error:
        if receipt is not None:
            raise
        _tell(f"{destination}: no receipt is written: {error.strerror}")
        destination = None
    run = run_with_receipt(command, environment, destination)
    _tell(*summary(run, destination, command_line(ctx, "tune", command)))
    if kernel_directory is not None:
        _tell(f"kernels that Inductor generated: {len([*kernel_directory.glob('*.json')])} in {kernel_directory}")
    return run.ended.code


@click.command("tune", context_settings=_AS_TYPED)
@click.option(
    "--table",
    type=Output(TABLE_KIND, ".json", allow_dash=False),
    help="The table to build or to extend. It is for one kind of device.  [default: for each kind of device, one in "
    "~/.config/diode_lut/tables/, which every program uses]",
)
@click.option(
    "--budget",
    type=MINUTES,
    default=10.0,
    help="Begin no measurement after this time. The next `tune` measures the rest.",
)
@_STOP_AFTER
@_COMMAND
@click.pass_context
def tune_command(
    ctx: click.Context, command: tuple[str, ...], table: Path | None, budget: float, stop_after: float | None
) -> int:
    """Run a program, measure its misses, and build your own table.

    The program then runs again with the table, and a summary says how many of its GEMMs are answered now. If tune is
    interrupted, give the same command again: it continues where it stopped. The exit code is the program's.
    """
    if table is not None and not table.suffix and not table.exists():
        raise click.UsageError(f"--table {table}: is built, so it is a file and no name, such as {table}.json")
    if find_spec("torch") is None:  # importing it would take seconds
        raise SettingError(f"tune needs torch where diode_lut is installed: {install_command('torch')}")
    _require_answers()
    if USER not in config.tiers:
        raise SettingError(f"DIODE_LUT_TIERS={os.pathsep.join(config.tiers)}: the tables of {USER} do not answer")
    from diode_lut.programs.tune import Order, tune

    compare, again = (command_line(ctx, verb, command, table) for verb in ("compare", "tune"))
    if table is not None:
        table = table.absolute()
        require_writable(table)
        if table.exists():
            read_whole_table(Typed(table), "correct it first, or tune into another file")
    return tune(Order(command, dict(os.environ), table, budget * 60, stop_after, compare, again), _tell)


@click.command("compare", context_settings=_AS_TYPED)
@_TABLES
@click.option(
    "--repetitions",
    "-n",
    type=click.IntRange(min=2),
    help="Number of runs with tables, and of runs without, instead of as many as the verdicts need.",
)
@click.option(
    "--budget",
    type=MINUTES,
    default=10.0,
    help="Start no run that would end after this time. It ends earlier if all verdicts are clear.",
)
@click.option(
    "--at-once",
    type=click.IntRange(1, 16),
    default=8,
    metavar="N",
    help="The maximum number of runs that compile at once. There are fewer if memory or cores, 2 for each, do not "
    "suffice. Give 1 if copies of the program disturb each other.",
    show_default=True,
)
@click.option(
    "--apply", "applies", is_flag=True, help="Set the kernel without tables, in your own table, for what is slower."
)
@click.option(
    "--output",
    "-o",
    type=Output(PAGE, allow_dash=False),
    default=Path("diode-lut-compare.html"),
    help="The HTML page to write. The figures go to a JSON file beside it.",
)
@_STOP_AFTER
@_COMMAND
@click.pass_context
def compare_command(
    ctx: click.Context,
    command: tuple[str, ...],
    tables: tuple[str, ...],
    repetitions: int | None,
    budget: float,
    at_once: int,
    applies: bool,
    output: Path,
    stop_after: float | None,
) -> int:
    """Run a program with and without tables, and compare the times.

    It compares the time of a call of a compiled graph, of each GEMM, and of a step if the program calls
    diode_lut.step() or prints it. For each time it says whether the difference is larger than the noise, and it goes on
    until it can tell. It ends with what to do. After Ctrl-C it compares the pairs of runs that are finished, and sets
    nothing. On a GPU several runs compile at once, and then run one after the other.
    """
    _require_answers()
    if output.suffix == ".json":
        raise click.UsageError(f"--output {output}: the page is HTML, and the figures go to {output} beside it")
    interrupt_on_signals()  # so that a killed comparison gives its verdicts, too
    from diode_lut.errors import as_json as printable_json
    from diode_lut.programs.compare import ComparisonEnded, ComparisonPlan, compare, longer
    from diode_lut.programs.comparison import as_json, losers, not_answered, summary
    from diode_lut.programs.page import as_page

    figures = output.with_suffix(".json")
    require_kind(figures, COMPARISON)
    try:
        for path in (output, figures):
            require_writable(path)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS):
            raise
        raise SettingError(f"{error.filename}: {error.strerror}: name another page with --output") from error
    plan = ComparisonPlan(command, _with_tables(tables), repetitions, budget * 60, stop_after, at_once)
    try:
        found = compare(plan, _tell)
    except ComparisonEnded as ended:
        return ended.code
    write_atomically(output, as_page(found).encode())
    write_atomically(figures, f"{printable_json(as_json(found))}\n".encode())
    lost = [*losers(found)]
    _tell(*summary(found), *map(str, lost))
    if applies and found.stopped:
        _tell("nothing is set, because the comparison was interrupted")
    elif applies:
        _apply(lost)
    elif lost:
        _tell("`compare --apply` does this at its end")
    _tell(*not_answered(found))
    if found.spent:
        own = [word for table in tables for word in ("--table", table)]
        again = as_command("compare", *own, *longer(found, plan), "--", *command)
        _tell(f"some times are open; more runs may tell: {ctx.find_root().info_name} {again}")
    _tell(f"page: {output}, figures: {figures}")
    return found.stopped


def _apply(lost: Sequence[Loser]) -> None:
    """Do what the commands of these losers do."""
    from diode_lut.cli.tables import set_command

    for loser in lost:
        _, _, *words = (str(word.absolute()) if isinstance(word, Path) else word for word in loser.command)
        set_command.main(words, standalone_mode=False)
    _tell("nothing is slower: no row is set" if not lost else f"set {counted(len(lost), 'row')} of your own")


def command_line(ctx: click.Context, verb: str, command: Sequence[str], table: Path | None = None) -> str:
    """Return the line for another command on the same program."""
    options = () if table is None else ("--table", table)
    return f"{ctx.find_root().info_name} {as_command(verb, *options, '--', *command)}"


def _require_answers() -> None:
    """Raise SettingError if the settings let no table answer."""
    if not autoregister():
        raise SettingError("DIODE_LUT_AUTOREGISTER=0: the hook is not armed; unset it")
    if config.policy == "off":
        raise SettingError("DIODE_LUT_POLICY=off: no table answers; unset it")


def _with_tables(tables: Sequence[str]) -> dict[str, str]:
    """Return the environment with more tables, relative to our directory. TableError or ModelError if one is none."""
    from diode_lut.decide.catalog import find_path, head_of

    named = [str(find_path(name).absolute()) for name in tables]
    for path in named:
        head_of(Path(path))
    names = os.pathsep.join([*named, *filter(None, [os.environ.get("DIODE_LUT_TABLES")])])
    return {**os.environ, **({"DIODE_LUT_TABLES": names} if names else {})}


def _tell(*lines: str) -> None:
    """Print lines on standard error, to leave the program's own output unchanged."""
    for line in lines:
        say(f"diode-lut: {line}", err=True)
