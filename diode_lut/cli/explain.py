"""The commands ``explain`` and ``doctor``."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext

import click

from diode_lut.cli.output import say
from diode_lut.cli.typed import DTYPE, LAYOUT, OP, SIZE, TABLE, Typed
from diode_lut.domain.printable import printable
from diode_lut.domain.problem import ALIGNS, EPILOGUES, NO_EPILOGUE, Problem


@click.command("explain")
@click.argument("op", type=OP)
@click.argument("m", type=SIZE)
@click.argument("n", type=SIZE)
@click.argument("k", type=SIZE)
@click.option("--batch", type=SIZE, default=1, show_default=True, help="GEMMs in a bmm or baddbmm.")
@click.option("--dtype", type=DTYPE, default="bfloat16", show_default=True, help="Type of A and B.")
@click.option(
    "--layout",
    type=LAYOUT,
    default="nn",
    show_default=True,
    help="Of A and B: n is row-major, t is column-major. A linear layer is nt.",
)
@click.option(
    "--align",
    type=click.Choice([str(align) for align in ALIGNS]),
    help="16 if every row of A and B starts on a 16-byte boundary, else 2.  [default: that of packed matrices]",
)
@click.option(
    "--epilogue",
    type=click.Choice(tuple(EPILOGUES)),
    default=NO_EPILOGUE,
    show_default=True,
    help="Class of the pointwise work that is fused behind the GEMM. The hook asks for none.",
)
@click.option(
    "--hardware", metavar="NAME", help="Name of a table or of its GPU.  [default: the device of this machine]"
)
@click.option(
    "--table",
    type=TABLE,
    metavar="FILE",
    help="Ask this table before all other tables, or this model before all other models; tables come first.",
)
@click.option("--chooser", metavar="MODULE:FUNCTION", help="Ask this function first, as register_chooser takes it.")
@click.pass_context
def explain_command(
    ctx: click.Context,
    op: str,
    m: int,
    n: int,
    k: int,
    batch: int,
    dtype: str,
    layout: str,
    align: str | None,
    epilogue: str,
    hardware: str | None,
    table: Typed | None,
    chooser: str | None,
) -> None:
    """Show which configs the GEMM of an M x K and a K x N matrix gets, and from which row of which table.

    It also shows which rows would answer next, why they do not answer, and what the model expects. It exits with 1 if
    neither a table nor a model answers.
    """
    from diode_lut.runtime import api

    alignment = int(align) if align else None
    problem = Problem.of(op, m, n, k, b=batch, dtype=dtype, layout=layout, align=alignment, epilogue=epilogue)
    with _registered(chooser):
        explanation = api.explanation(problem, hardware=hardware, file=None if table is None else table.file)
    say(str(explanation))
    ctx.exit(0 if explanation.decision.configs else 1)


def _registered(chooser: str | None) -> AbstractContextManager[object]:
    """The function MODULE:FUNCTION is registered, if there is one."""
    if chooser is None:
        return nullcontext()
    from diode_lut.runtime.choosers import register_chooser
    from diode_lut.selection.chooser import load_function

    return register_chooser(load_function(chooser), name=chooser, digest=chooser, before_tables=True)


_COLORS = {"ok": "green", "note": "yellow", "wrong": "red"}
"""By how a finding of doctor begins."""


@click.command("doctor")
@click.option("--chooser", metavar="MODULE:FUNCTION", help="Check this function, too, as register_chooser takes it.")
@click.pass_context
def doctor_command(ctx: click.Context, chooser: str | None) -> None:
    """Check PyTorch, the hook, Inductor's caches, the devices, and the tables and models for them, in this process.

    Then it says what a program gets from this environment: settings, and threads. It prints its findings and what to do
    about them. It exits with 1 if something is wrong. Nothing is compiled.
    """
    from diode_lut.doctor import examine

    logging.getLogger("diode_lut").addHandler(logging.NullHandler())  # the findings have what the log would have
    found = False
    with _registered(chooser):
        for subject, findings in examine():
            say(f"{subject}:")
            for finding in findings:
                say(printable(f"{finding.state:5}  {finding.topic}: {finding.text}"), colors=_COLORS)
                if finding.remedy:
                    say(printable(f"       to do: {finding.remedy}"))
                found |= finding.state == "wrong"
    ctx.exit(1 if found else 0)
