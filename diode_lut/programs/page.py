"""The page of a comparison: one self-contained HTML file without a script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median
from string import Template

from diode_lut.errors import as_command, counted, printable
from diode_lut.probe import CPP_GEMM
from diode_lut.programs.comparison import WORDS, Comparison, compile_text, losers, spread_text
from diode_lut.programs.times import GEMMS_ERR, LEAST_GEMM_RUNS, TIMES_ERR, GemmChange, GemmTime, Speedup, ratio_text

_TEMPLATE = Path(__file__).parent / "assets" / "compare.html"

_LISTED = 10  # number of listed GEMMs with a gain, and of listed GEMMs with a loss

_METHOD = """The program ran $pairs times with and $pairs times without tables, in alternating order. Runs without
tables differ by DIODE_LUT_POLICY=off alone. Inductor chose and benchmarked anew in each run. All but the first run of
each kind found compiled Triton kernels. Several runs may have compiled at once, but while one called its graphs, the
others waited. A ratio is the time without over the time with tables, 2x for half the time: the geometric mean over the
pairs, with a confidence interval. All intervals of times together miss in $times of comparisons, however often they
were looked at. If one includes 1x and more than 3 % to a side, the time is open: more runs may tell. Times of graphs
and GEMMs are medians of the first calls in a run, under torch's profiler, without the first call of each graph. A GEMM
or a generated kernel counts as faster or slower if its kernel may be another one, it has at least $least runs of each
kind, and a rank-sum test says so after Holm's correction for all of both: in $gemms of comparisons without a
difference, one or more do. The interval of one alone has 95 %. A kernel with a fused epilogue does more than the
library's, whose epilogue is a kernel of its own: the time of a call of a graph has both."""


def as_page(comparison: Comparison) -> str:
    """The HTML."""
    traced = f", {'GPU' if comparison.on_gpu else 'CPU'} time"
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title="With and without tables",
        command=_text(as_command(*comparison.command)),
        about=_about(comparison),
        tiles="\n".join(
            _tile(f"{WORDS[name]}{traced if name in ('graph', 'gemms') else ''}", change)
            for name, change in comparison.changes.items()
        ),
        compiling=_text(compile_text(comparison)),
        gemms="\n".join(
            [
                _kernels(comparison.gemms, "GEMM", "B x M x N x K, type"),
                _kernels(comparison.generated, "generated kernel", "problem: ops"),
                _items("What to do", _REMEDIES, [f"<code>{_text(str(each))}</code>" for each in losers(comparison)]),
            ]
        ),
        costs=_items("Costs that no kernel choice removes", _COSTS, [_text(str(each)) for each in comparison.costs]),
        method=Template(_METHOD).substitute(
            pairs=comparison.pairs, times=f"{TIMES_ERR:.0%}", gemms=f"{GEMMS_ERR:.0%}", least=LEAST_GEMM_RUNS
        ),
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _about(comparison: Comparison) -> str:
    devices = comparison.receipt.devices
    asked = sum(device.calls for device in devices.values())
    answered = sum(device.hits.total() for device in devices.values())
    digests = {hit.digest for device in devices.values() for hit in device.hits}
    found = (source for device in devices.values() for source in device.sources if source.digest in digests)
    sources = sorted({Path(source.path).name for source in found})
    versions = [
        f"torch {each.torch}, Triton {each.triton or 'none'}, diode_lut {each.diode_lut}"
        for each in sorted(comparison.receipt.versions)
    ]
    parts = [
        ", ".join(str(hardware) for hardware in sorted(devices)),
        *versions[-1:],
        f"{answered} of {asked} questions answered by {', '.join(sources) or 'tables in memory'}",
        *(f"{name}={value}" for name, value in comparison.settings.items()),
        *(["stopped by a signal"] if comparison.stopped else []),
    ]
    return " &middot; ".join(map(_text, parts))


def _tile(name: str, change: Speedup) -> str:
    verdict = "" if not change.is_clear else " faster" if change.gain > 1 else " slower"
    return (
        f'<div class="tile"><h3>{escape(name)}</h3>'
        f'<p class="verdict{verdict}">{escape(change.verdict)}</p>'
        f'<p class="hint">without over with: {escape(change.interval)}</p>'
        f"{_dots(change)}"
        f'<p class="hint">without: {escape(spread_text(change.without))}; with: {escape(spread_text(change.tuned))}</p>'
        "</div>"
    )


_WIDTH, _LEFT, _RIGHT = 320.0, 56.0, 10.0  # of the picture of a tile: its width and its margins


def _dots(change: Speedup) -> str:
    """Draw a dot for each run, on a scale that begins at zero."""
    highest = max(*change.without, *change.tuned)
    rows = (("without", change.without, 14.0), ("with", change.tuned, 38.0))
    drawn = []
    for name, times, y in rows:
        drawn.append(f'<text x="0" y="{y + 4:g}">{name}</text>')
        drawn.append(f'<line x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{y:g}" y2="{y:g}"/>')
        places = (_LEFT + (_WIDTH - _LEFT - _RIGHT) * time / highest for time in times)
        drawn += (f'<circle class="dot-{name}" cx="{x:.1f}" cy="{y:g}" r="5"/>' for x in places)
    label = f"Medians: {spread_text([median(change.without)])} without, {spread_text([median(change.tuned)])} with"
    return f'<svg viewBox="0 0 {_WIDTH:g} 52" role="img" aria-label="{escape(label)}">{"".join(drawn)}</svg>'


def _kernels(changes: Sequence[GemmChange], what: str, first: str) -> str:
    """List the kernels of a kind that gained and lost most, and those that are open or have nothing to compare with."""
    if not changes:
        return ""
    clear = [change for change in changes if change.is_clear]
    listed = (
        ("that gained most", [change for change in clear if change.saved_ns > 0], ""),
        ("that lost most", [change for change in reversed(clear) if change.saved_ns < 0], ""),
        ("that are open", [change for change in changes if change.is_open], _OPEN),
        ("of one kind of runs", [change for change in changes if not change.without or not change.tuned], _ONE_KIND),
    )
    parts = [_listed(f"{what}s {which}", each[:_LISTED], first, hint) for which, each, hint in listed if each]
    others = len(changes) - sum(len(each) for _, each, _ in listed)
    if others:
        text = f"{counted(others, f'more {what}' if parts else what)} without a difference beyond noise."
        hint = f'<p class="hint">{text}</p>'
        parts.append(hint if parts else f"<section><h2>{what[0].upper()}{what[1:]}s</h2>{hint}</section>")
    return "\n".join(parts)


_OPEN = "All runs of one kind are faster than all runs of the other, but a verdict on so many kernels needs more runs."
_EXECUTION = "One execution: the median of the runs, the fastest and the slowest. Most time gained or lost first."
_ONE_KIND = "Padding and decompose_k change sizes."


_REMEDIES = "Each command sets, for what is slower, the kernel that it has without tables; compare --apply does all."
_COSTS = "Of the traced runs with tables, from the first repeated call of a graph on."


def _items(title: str, hint: str, items: Sequence[str]) -> str:
    listed = "".join(f"<li>{item}</li>" for item in items)
    return f'<section><h2>{title}</h2><p class="hint">{hint}</p><ul>{listed}</ul></section>' if items else ""


_COLUMNS = ("executions", "without", "with", "ratio", "kernel without", "kernel with")  # after the name


def _listed(title: str, changes: Sequence[GemmChange], first: str, hint: str) -> str:
    title, about = f"{title[0].upper()}{title[1:]}", hint or _EXECUTION
    columns = (first, *_COLUMNS)
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    rows = []
    for change in changes:
        one, other = change.without, change.tuned
        calls = " / ".join(str(times[0].calls) for times in (one, other) if times)
        ratio, low, high = (ratio_text(each) for each in change.ratios or (1, 1, 1))
        gain = f"{ratio} ({low} to {high})" if change.ratios else ""
        cells = (change.name, calls, _time(one), _time(other), gain, _kernel(one), _kernel(other))
        labelled = zip(columns, cells, strict=True)
        row = "".join(f'<td data-label="{escape(name)}">{_text(cell)}</td>' for name, cell in labelled)
        rows.append(f"<tr>{row}</tr>")
    body = "\n".join(rows)
    return (
        f'<section><h2>{escape(title)}</h2><p class="hint">{escape(about)}</p><div class="scroll">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div></section>"
    )


def _time(times: Sequence[GemmTime]) -> str:
    return spread_text([time.ns / 1e9 for time in times]) if times else ""


def _kernel(times: Sequence[GemmTime]) -> str:
    kernel = times[0].kernel if times else ""
    return CPP_GEMM if kernel.startswith(CPP_GEMM) else kernel
