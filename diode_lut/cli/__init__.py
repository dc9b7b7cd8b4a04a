"""The command line: a command for each verb. A command opens files, calls the library, and prints.

It returns its exit code: 0 or None if all is fine, 1 for invalid, different or missed, 2 for wrong usage or unreadable,
130 after Ctrl-C.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pkgutil import resolve_name
from typing import Any

import click

from diode_lut.cli.output import STOPPED, say, say_error
from diode_lut.errors import DiodeLutError, printable
from diode_lut.files import documents_directory
from diode_lut.process import __version__
from diode_lut.settings import config

SECTIONS = {
    "Run programs": {
        "run": ("diode_lut.cli.programs:run_command", "programs.md#run"),
        "tune": ("diode_lut.cli.programs:tune_command", "programs.md#tune"),
        "compare": ("diode_lut.cli.programs:compare_command", "programs.md#compare"),
        "receipt": ("diode_lut.cli.evaluate:receipt_command", "receipts.md#receipt"),
        "doctor": ("diode_lut.cli.explain:doctor_command", "receipts.md#doctor"),
    },
    "Ask what a GEMM gets": {
        "explain": ("diode_lut.cli.explain:explain_command", "troubleshooting.md#explain"),
        "tables": ("diode_lut.cli.tables:tables_command", "troubleshooting.md#tables"),
    },
    "Measure, build and evaluate": {
        "adopt": ("diode_lut.cli.build:adopt_command", "collecting.md#adopt"),
        "verify": ("diode_lut.cli.build:verify_command", "collecting.md#verify"),
        "collect": ("diode_lut.cli.timings:collect_command", "collecting.md#collect"),
        "pack": ("diode_lut.cli.build:pack_command", "collecting.md#pack"),
        "build": ("diode_lut.cli.build:build_command", "collecting.md#build"),
        "evaluate": ("diode_lut.cli.evaluate:evaluate_command", "collecting.md#evaluate"),
        "distill": ("diode_lut.cli.build:distill_command", "model.md#distill"),
        "report": ("diode_lut.cli.evaluate:report_command", "reviewing.md#report"),
    },
    "Read and edit tables": {
        "show": ("diode_lut.cli.tables:show_command", "reviewing.md#show"),
        "query": ("diode_lut.cli.query:query_command", "editing.md#query"),
        "set": ("diode_lut.cli.tables:set_command", "editing.md#set-and-unset"),
        "unset": ("diode_lut.cli.tables:unset_command", "editing.md#set-and-unset"),
        "check": ("diode_lut.cli.tables:check_command", "editing.md#check"),
        "fmt": ("diode_lut.cli.tables:fmt_command", "editing.md#fmt"),
    },
    "Review and share": {
        "diff": ("diode_lut.cli.git:diff_command", "reviewing.md#diff"),
        "merge": ("diode_lut.cli.git:merge_command", "reviewing.md#merge"),
        "resolve": ("diode_lut.cli.git:resolve_command", "reviewing.md#resolve"),
        "git-setup": ("diode_lut.cli.git:git_setup_command", "reviewing.md#git-setup"),
        "import": ("diode_lut.cli.timings:import_command", "exchange.md#import"),
        "export": ("diode_lut.cli.timings:export_command", "exchange.md#export"),
    },
}
"""The overview: sections of commands, each with its function, imported when needed, and its place in the documents."""

_FIRST = """Tuned kernels for torch.compile, from tables that people can read.

\b
Begin with these, on a program of your own:
  diode-lut run -- python train.py      run it with tuned kernels
  diode-lut tune -- python train.py     measure the GEMMs that tables miss
  diode-lut compare -- python train.py  time it with and without tables
"""

COMMANDS = {name: function for commands in SECTIONS.values() for name, (function, _) in commands.items()}

_OTHER_NAMES = {
    "bench": "collect",
    "benchmark": "collect",
    "convert": "import",
    "delete": "unset",
    "edit": "set",
    "format": "fmt",
    "help": "--help, alone or after a command",
    "join": "merge",
    "lint": "check",
    "list": "tables",
    "lookup": "explain",
    "ls": "tables",
    "measure": "collect",
    "profile": "compare",
    "remove": "unset",
    "search": "query",
    "train": "distill",
    "validate": "check",
    "version": "--version",
    "view": "show",
}
"""Names in other tools, and the command to use."""


class _CommandGroup(click.Group):
    """The group of all commands. It prints their errors, each on its line, and turns results into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        return sorted(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview, with the whole first sentence of each command's help."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                commands = {name: self.get_command(ctx, name) for name in names}
                formatter.write_dl([(name, each.get_short_help_str(1000)) for name, each in commands.items() if each])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write(f"\nDocumentation: {documents_directory()}; COMMAND --help has all options of a command.\n")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            lower = name.lower()
            close = [_OTHER_NAMES[lower]] if lower in _OTHER_NAMES else get_close_matches(lower, COMMANDS, 2)
            remedy = f"did you mean {' or '.join(close)}?" if close else "--help lists all commands"
            ctx.fail(f"no such command: {name} ({remedy})")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = resolve_name(COMMANDS[cmd_name])
        assert isinstance(command, click.Command)
        (place,) = (commands[cmd_name][1] for commands in SECTIONS.values() if cmd_name in commands)
        link = f"\b\nDocumentation: {documents_directory()}/{place}"
        if not (command.epilog or "").endswith(link):
            command.epilog = "\n\n".join(filter(None, (command.epilog, link)))
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _printable_usage_errors() if args else nullcontext():  # without any, the error is the help
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _printable_usage_errors():
                code = super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of the output is gone: click ends quietly
        except (DiodeLutError, OSError) as error:
            code = say_error(error)
        except KeyboardInterrupt:  # click would exit with 1, which means invalid or different
            say("interrupted", err=True)
            code = STOPPED
        ctx.exit(code or 0)


@contextmanager
def _printable_usage_errors() -> Iterator[None]:
    """Escape the messages with arguments in them that click itself prints."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = printable(error.message)
        raise


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True}


@click.group(cls=_CommandGroup, help=_FIRST, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="diode_lut")
def main() -> None:
    """Run a command."""
    config.receipt = None  # receipts are for the user's own programs
    gc.set_threshold(100_000)  # a table's rows are many objects without reference cycles
    atexit.register(gc.freeze)  # avoids a last search through all objects
