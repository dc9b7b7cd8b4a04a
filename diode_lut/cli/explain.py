"""``explain`` and ``doctor``: the kernel of a GEMM, and whether tables can be used on this machine."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from diode_lut.cli import arguments
from diode_lut.cli.output import TEXT_OR_JSON, say
from diode_lut.errors import DatasetError, ProblemError, as_json, printable, size_of
from diode_lut.problem import (
    ALIGNS,
    ATTENTION,
    DOMAINS,
    FUSED,
    GENERATED,
    GROUPED,
    JOINED,
    MAX_SIZE,
    NO_EPILOGUE,
    NO_VARIANT,
    OF_KERNELS,
    OP_SIZES,
    SCALED,
    SPLIT,
    Problem,
    needed_sizes,
)

if TYPE_CHECKING:
    from diode_lut.api import Explanation, OverSizes
    from diode_lut.decide.decide import Axis
    from diode_lut.hardware import Hardware
    from diode_lut.templates.config import Config


def _axis(text: str) -> Axis:
    """Return the name and the range of a dynamic size."""
    from diode_lut.decide.decide import Axis

    found = re.fullmatch(r"([bmnkx])=(\w+):(\w+)?", text.casefold())
    try:
        low, high = (size_of(found[2]), size_of(found[3]) if found[3] else None) if found else (0, None)
    except ProblemError as error:
        raise click.BadParameter(str(error)) from None
    if high and high < low:
        raise click.BadParameter(f"{text!r} ends before it begins")
    if found is None or not 1 <= low <= (high or low) <= MAX_SIZE:
        known = "b, m, n, k or x and its range, such as m=1:8192, or m=1: without an end"
        raise click.BadParameter(f"{text!r} is not {known}")
    return Axis((found[1],), low, high)


_GENERAL = ("hardware", "table", "chooser", "inputs", "form")  # the parameters that say nothing about a problem


@click.command("explain")
@click.argument("op", type=arguments.OP, metavar="OP", required=False, is_eager=True)  # variants are an op's
@click.argument("m", type=arguments.SIZE, required=False, metavar="M")
@click.argument("n", type=arguments.SIZE, required=False, metavar="N")
@click.argument("k", type=arguments.SIZE, required=False, metavar="K")
@click.option(
    "--problems",
    "problem_file",
    type=arguments.FILE,
    metavar="SET|FILE",
    help="Explain all problems of a set or file as collect takes it, instead of OP M N K.",
)
@click.option(
    "--batch", "b", type=arguments.SIZE, default=1, help="Of a bmm, a baddbmm or attention; groups of a grouped_mm."
)
@click.option(
    "--dtype",
    type=arguments.DTYPE,
    help="Type of A and B.  [default: bfloat16, for scaled_mm float8_e4m3fn, for int_mm int8]",
)
@click.option(
    "--layout",
    type=arguments.LAYOUT,
    help="Of A and B: n is row-major, t is column-major. A linear layer is nt.  "
    "[default: nn, for scaled_mm and attention nt]",
)
@click.option(
    "--align",
    type=click.Choice(ALIGNS),
    help="16 if every row of A and B starts on a 16-byte boundary, else 2.  [default: that of packed matrices]",
)
@click.option(
    "--epilogue",
    type=arguments.EPILOGUE,
    default=NO_EPILOGUE,
    help="Class of the pointwise work that is fused after the GEMM: light such as relu, medium such as silu or a "
    "residual, heavy such as gelu with tanh.",
)
@click.option(
    "--variant",
    type=arguments.VARIANT,
    metavar="VARIANT",
    help="Of scaled_mm: what has a scale, the type of the result, and whether there is a bias and fast accumulation, "
    "such as row-bfloat16 or tensor-float16-bias-fast. Of attention: its mask and its modification of scores, such as "
    "causal or computed-score-captured. Of a generated kernel: how it reads, such as inner or tiled-x. Of "
    "joined matmuls: two, three, swiglu or geglu. Of fused_mm: the work after the matmul, such as gelu or add.",
)
@click.option("--heads", "h", type=arguments.SIZE, default=1, help="Query heads of attention.")
@click.option("--group", "g", type=arguments.SIZE, default=1, help="Those that share keys and values.")
@click.option("--value-dim", "v", type=arguments.SIZE, help="Head dimension of attention's values.  [default: K]")
@click.option("--x", type=arguments.SIZE, help="Elements that a generated kernel writes, or in a row of a tiled one.")
@click.option("--y", type=arguments.SIZE, help="Rows of a tiled pointwise kernel.")
@click.option("--r", type=arguments.SIZE, help="Elements that a reduction reduces to one.")
@click.option(
    "--loads", type=arguments.SIZE, help="Elements that a pointwise kernel reads for each it writes.  [default: 1]"
)
@click.option(
    "--dynamic",
    type=_axis,
    metavar="SIZE=LOW:HIGH",
    multiple=True,
    help="A size that may change, such as m=1:8192: show which kernel each part of its range gets.",
)
@click.option(
    "--hardware",
    metavar="NAME",
    help="A GPU such as H100, a table by name or path, cpu, cuda, or NAME,ARCH,SMS.  [default: this machine's device]",
)
@arguments.table_option(
    "--table", help="Ask this table before all other tables, or this model before all other models; tables come first."
)
@click.option("--chooser", metavar="MODULE:FUNCTION", help="Ask this function first, as register_chooser takes it.")
@arguments.files_option(
    "--dataset",
    "inputs",
    help="Show the times in this dataset, too; can be repeated.  [default: the timings that `tune` keeps beside your "
    "table]",
)
@TEXT_OR_JSON
def explain_command(
    problem_file: arguments.Typed | None,
    dynamic: tuple[Axis, ...],
    hardware: str | None,
    table: arguments.Typed | None,
    chooser: str | None,
    inputs: tuple[arguments.Typed, ...],
    form: str,
    **fields: Any,
) -> int:
    """Show which kernel a GEMM gets, from which row, and why.

    OP is an op of the table format: mm, or another op that multiplies an M x K by a K x N matrix; grouped_mm, with M
    rows in all groups together; or flex_attention, flex_attention_backward or flex_decoding, with M queries and N keys
    of K elements. The kernels that Inductor generates are pointwise and reduction, and split_reduction is the number of
    parts of a reduction: these have --variant and some of --x, --y, --r and --loads. The output names the configs, the
    row that answers, the rows that would answer next, and the gain that the model expects. It exits with 1 if neither a
    table nor a model answers.
    """
    from diode_lut import api
    from diode_lut.decide.catalog import TableFile, open_file, open_table

    first = None
    if table is not None:  # a model has to be in a file
        first = open_file(table.path) if table.contents is None else open_table(table.path, table.contents)
    if first is not None and table is not None and TableFile(table.path, first.hardware, False).called(hardware or ""):
        device: Hardware | None = first.hardware
    else:
        device = None if hardware is None else arguments.hardware_of(hardware)
    if problem_file is not None:
        _require_only(("problem_file",), "--problems: its problems have all their fields")
        problems = arguments.problems_of(problem_file)
    else:
        problems = [_problem(**fields)]
    if dynamic and inputs:
        raise click.UsageError("--dynamic and --dataset exclude each other: a time is of one size")
    axes = [_checked(each, problems[0].op, len(dynamic)) for each in dynamic]
    found: Sequence[Explanation | OverSizes]
    with _registered(chooser):
        if axes:
            over = api.explanation_over(problems[0], axes[0], hardware=device, first=first)
            found, are_answered = [over], bool(over.parts or over.whole.configs)
        else:
            explanations = [api.explanation(each, hardware=device, first=first) for each in problems]
            are_answered = all(each.decision.configs for each in explanations)
            found = _timed(explanations, inputs)
    if form == "json":
        documents = [each.as_dict() for each in found]
        say(as_json(documents if problem_file is not None else documents[0]))
    else:
        for each in found:
            say(str(each))
    return 0 if are_answered else 1


def _problem(op: str | None, **fields: Any) -> Problem:
    """Return the problem of the command line. UsageError names an option or argument that is missing, or too many."""
    sizes = {name: size for name in OF_KERNELS if (size := fields.pop(name)) is not None}
    fields["variant"] = fields["variant"] or NO_VARIANT
    if op in GENERATED:
        sizes_alone = f"{op} has --variant and --{' --'.join(OP_SIZES[op])} alone"
        _require_only(("op", "variant", "dynamic", *OF_KERNELS), sizes_alone)
        for name in needed_sizes(op, fields["variant"]):
            if name not in sizes:
                raise click.UsageError(f"Missing option '--{name}' ({op} has the sizes {' and '.join(OP_SIZES[op])}).")
        return Problem.generated(op, fields["variant"], **sizes)
    for name in sizes:
        raise click.UsageError(f"--{name}: {op or 'OP'} has no size {name}; only {', '.join(GENERATED)} may have")
    for name, value in {"OP": op, **{name.upper(): fields[name] for name in "mnk"}}.items():
        if value is None:
            raise click.UsageError(f"Missing argument '{name}' (OP M N K are one problem; --problems FILE has many).")
    assert op is not None
    dtypes = DOMAINS[op].dtypes
    fields["dtype"] = fields["dtype"] or ("bfloat16" if "bfloat16" in dtypes else dtypes[0])
    fields["layout"] = fields["layout"] or DOMAINS[op].layouts[0]
    return Problem.of(op, **fields)


def _checked(axis: Axis, op: str, count: int) -> Axis:
    """Return the axis. BadParameter if sizes of the op may not change, or not this one, or if there are more axes."""
    if count > 1:
        reason = "one size at a time"
    elif op in (*ATTENTION, *GROUPED, *SCALED, *FUSED, SPLIT):
        reason = f"where sizes of {op} may change, Inductor decides alone"
    elif op in JOINED and axis.fields[0] != "m":
        reason = f"matmuls whose {axis.fields[0]} may change are not joined"
    elif axis.fields[0] not in OP_SIZES[op]:
        reason = f"{op} has no size {axis.fields[0]}"
    else:
        return axis
    raise click.BadParameter(reason, param_hint="--dynamic")


def _timed(explanations: list[Explanation], inputs: tuple[arguments.Typed, ...]) -> list[Explanation]:
    """Add times of these datasets of the same device, or of those that ``tune`` keeps beside the answering table."""
    from diode_lut.files import timings_of

    datasets = arguments.read_datasets(inputs)
    if inputs:
        for dataset in datasets:
            if not dataset.header.hardware.same_device(explanations[0].decision.hardware):
                reason = f"measured on {dataset.header.hardware}, but asked about {explanations[0].decision.hardware}"
                raise DatasetError(f"{dataset.path}: {reason} (--hardware names another)")
    else:
        answering = {each.decision.source.path for each in explanations if each.decision.source} - {None}
        files = (sorted(timings_of(table).glob("*.msgpack")) for table in answering if table)
        datasets = arguments.read_datasets(map(arguments.Typed, chain.from_iterable(files)))
    wanted = {each.decision.problem for each in explanations}
    records = [record for dataset in datasets for record in dataset if record.problem in wanted]
    times: dict[Problem, dict[Config, float]] = {}
    if any(timing.ns is not None for record in records for timing in record.timings):
        from diode_lut.build.measurements import measurements_of

        found = measurements_of(records)
        times = {problem: found.times_on(number) for number, problem in enumerate(found.problems)}
    for problem in wanted - times.keys() if inputs else ():
        say(f"note: {problem}: the datasets have no time of it", err=True)
    return [each._replace(times=times.get(each.decision.problem, {})) for each in explanations]


def _require_only(names: Sequence[str], reason: str) -> None:
    """Raise UsageError, with a reason, if the command line says more about a problem than these parameters."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in (*names, *_GENERAL) or context.get_parameter_source(name) != ParameterSource.COMMANDLINE:
            continue
        given = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
        raise click.UsageError(f"{reason}: leave out {given}")


def _registered(chooser: str | None) -> AbstractContextManager[object]:
    """Register the function MODULE:FUNCTION, if there is one."""
    if chooser is None:
        return nullcontext()
    from diode_lut.api import register_chooser
    from diode_lut.decide.choosers import load_function

    return register_chooser(load_function(chooser), name=chooser, digest=chooser, before_tables=True, generated=True)


@click.command("doctor")
@click.option("--chooser", metavar="MODULE:FUNCTION", help="Check this function, too, as register_chooser takes it.")
@TEXT_OR_JSON
def doctor_command(chooser: str | None, form: str) -> int:
    """Check whether tables can be used on this machine.

    It looks at PyTorch, the hook, Inductor's caches, the devices, and the tables and models for them, then at the
    settings and threads of a program in this environment. It compiles nothing. A finding in the state "wrong" comes
    with a remedy, and makes the exit code 1.
    """
    from diode_lut.doctor import examine

    logging.getLogger("diode_lut").addHandler(logging.NullHandler())  # the findings have what the log would have
    colors = {"ok": "green", "note": "yellow", "wrong": "red"}
    found = []
    with _registered(chooser):
        for subject, findings in examine():
            if form == "text":
                say(f"{subject}:")
            for finding in findings:
                found.append({"subject": subject, "topic": finding.topic, **finding._asdict()})
                if form == "text":
                    say(printable(f"{finding.state:5}  {finding.topic}: {finding.text}"), colors=colors)
                    if finding.remedy:
                        say(printable(f"       to do: {finding.remedy}"))
    if form == "json":
        say(as_json(found))
    return int(any(each["state"] == "wrong" for each in found))
