"""The command line: one command per verb, each a thin call of the library.

Exit codes: 0 fine, 1 invalid, different or missed, 2 wrong usage or unreadable.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import click

from diode_lut.cli.output import ERROR, exit_code, say
from diode_lut.errors import DiodeLutError, printable
from diode_lut.process import __version__, documents_directory
from diode_lut.settings import config

COMMANDS = {
    "adopt": "diode_lut.cli.adopt:adopt_command",
    "build": "diode_lut.cli.build:build_command",
    "check": "diode_lut.cli.tables:check_command",
    "collect": "diode_lut.cli.timings:collect_command",
    "compare": "diode_lut.cli.programs:compare_command",
    "diff": "diode_lut.cli.git:diff_command",
    "distill": "diode_lut.cli.build:distill_command",
    "doctor": "diode_lut.cli.explain:doctor_command",
    "evaluate": "diode_lut.cli.evaluate:evaluate_command",
    "explain": "diode_lut.cli.explain:explain_command",
    "export": "diode_lut.cli.timings:export_command",
    "fmt": "diode_lut.cli.tables:fmt_command",
    "git-setup": "diode_lut.cli.git:git_setup_command",
    "import": "diode_lut.cli.timings:import_command",
    "merge": "diode_lut.cli.git:merge_command",
    "pack": "diode_lut.cli.build:pack_command",
    "query": "diode_lut.cli.query:query_command",
    "receipt": "diode_lut.cli.evaluate:receipt_command",
    "report": "diode_lut.cli.evaluate:report_command",
    "resolve": "diode_lut.cli.git:resolve_command",
    "run": "diode_lut.cli.programs:run_command",
    "set": "diode_lut.cli.tables:set_command",
    "show": "diode_lut.cli.tables:show_command",
    "tables": "diode_lut.cli.tables:tables_command",
    "tune": "diode_lut.cli.programs:tune_command",
    "unset": "diode_lut.cli.tables:unset_command",
    "verify": "diode_lut.cli.adopt:verify_command",
}
"""The function of each command, which is imported when it is needed."""

SECTIONS_OF_DOCUMENTS = {
    "adopt": "collecting.md#adopt",
    "build": "collecting.md#build",
    "check": "editing.md#check",
    "collect": "collecting.md#collect",
    "compare": "programs.md#compare",
    "diff": "reviewing.md#diff",
    "distill": "model.md#distill",
    "doctor": "receipts.md#doctor",
    "evaluate": "collecting.md#evaluate",
    "explain": "troubleshooting.md#explain",
    "export": "exchange.md#export",
    "fmt": "editing.md#fmt",
    "git-setup": "reviewing.md#git-setup",
    "import": "exchange.md#import",
    "merge": "reviewing.md#merge",
    "pack": "collecting.md#pack",
    "query": "editing.md#query",
    "receipt": "receipts.md#receipt",
    "report": "reviewing.md#report",
    "resolve": "reviewing.md#resolve",
    "run": "programs.md#run",
    "set": "editing.md#set-and-unset",
    "show": "reviewing.md#show",
    "tables": "troubleshooting.md#tables",
    "tune": "programs.md#tune",
    "unset": "editing.md#set-and-unset",
    "verify": "collecting.md#verify",
}
"""Where the documentation describes each command."""

_OTHER_NAMES = {
    "bench": "collect",
    "benchmark": "collect",
    "convert": "import",
    "delete": "unset",
    "edit": "set",
    "format": "fmt",
    "help": "--help, alone or behind a command",
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
"""What people type, and the command that does it."""

SECTIONS = {
    "Run programs": ("run", "tune", "compare", "receipt", "doctor"),
    "Ask what a GEMM gets": ("explain", "tables"),
    "Measure, build and evaluate": ("adopt", "verify", "collect", "pack", "build", "evaluate", "distill", "report"),
    "Read and edit tables": ("show", "query", "set", "unset", "check", "fmt"),
    "Review and share": ("diff", "merge", "resolve", "git-setup", "import", "export"),
}
"""The commands in the order of the overview, by what they are for."""

_WHOLE = 1000
"""Characters of a command's line in the overview: as many as its first sentence has."""

_GC_THRESHOLD = 100_000
"""New objects after which Python looks for reference cycles: a table's rows are many objects without cycles."""


class _Group(click.Group):
    """The group of all commands, which shows their errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by what they are for, each with the whole first sentence of its help."""
        listed = {name for names in SECTIONS.values() for name in names}
        sections = {**SECTIONS, "Other": tuple(COMMANDS.keys() - listed)}
        for title, names in sections.items():
            commands = [(name, command) for name in names if (command := self.get_command(ctx, name))]
            if commands:
                with formatter.section(title):
                    formatter.write_dl([(name, command.get_short_help_str(_WHOLE)) for name, command in commands])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write(f"\nDocumentation: {documents_directory()}; COMMAND --help has all options of a command.\n")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            close = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else get_close_matches(name, COMMANDS, 2)
            remedy = f"did you mean {' or '.join(close)}?" if close else "--help lists all commands"
            ctx.fail(f"no such command: {name} ({remedy})")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command, epilog = _command(cmd_name)
        link = f"\b\nDocumentation: {documents_directory()}/{SECTIONS_OF_DOCUMENTS[cmd_name]}"
        command.epilog = "\n\n".join(filter(None, (epilog, link)))
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _printable_usage_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _printable_usage_errors():
                return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of the output is gone: click ends quietly
        except (DiodeLutError, OSError) as error:
            say(printable(f"error: {_text(error)}"), err=True, colors=ERROR)
            ctx.exit(exit_code(error))


@cache
def _command(name: str) -> tuple[click.Command, str | None]:
    """The command, and what its help ends with before where the documentation describes it."""
    module, _, attribute = COMMANDS[name].partition(":")
    command = getattr(import_module(module), attribute)
    assert isinstance(command, click.Command)
    return command, command.epilog


@contextmanager
def _printable_usage_errors() -> Iterator[None]:
    """Escapes the messages that click prints itself, which contain arguments."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = printable(error.message)
        raise


def _text(error: DiodeLutError | OSError) -> str:
    """The message. System errors about a file begin with the file, as all others do, and have no number."""
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str | PathLike):
        name = os.fsdecode(error.filename)
        remedy = f" (name files in it, such as {Path(name, '*')})" if isinstance(error, IsADirectoryError) else ""
        return f"{name}: {error.strerror}{remedy}"
    if isinstance(error, FileNotFoundError) and error.filename is None:  # from os.getcwd
        return "the working directory has been removed: change to another one"
    return str(error)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="diode_lut")
def main() -> None:
    """Tuned kernels for torch.compile, from tables that people can read."""
    config.receipt = None  # receipts are for the user's own programs
    gc.set_threshold(_GC_THRESHOLD)
    atexit.register(gc.freeze)  # avoids a last search through all objects
