"""Results of vLLM's engine with the plugin and without it, in Markdown, and as a picture."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import median

from modelbench.picture import BAR, GREY, NAMES, PANEL, SPACE, VALUE
from modelbench.real_table import ANSWERS, answers, at, bar, text
from modelbench.real_turns import ERROR
from modelbench.records import Record
from modelbench.vllm_start import DECODED, TRACED

from diode_lut.programs.times import change_of

WITHOUT, WITH = "without", "with"
COLD, WARM = "cold", "warm"
STARTS = {COLD: "empty", WARM: "filled"}
"""The starts of a pair, and the caches that they find."""
SEQUENCES, PREFILL = (1, 8, 32, 128, 256), (512, 4096)
_MEASURED = {
    "seconds": "Tokens per second without the plugin, and times as fast with it",
    "kernels_us": f"Milliseconds of the GPU's kernels for {TRACED} tokens of each sequence, or a prefill, without the "
    "plugin, and times as fast with it",
}
TASKS = (*(f"decode {count}" for count in SEQUENCES), *(f"prefill {count}" for count in PREFILL))


def markdown(records: Sequence[Record]) -> str:
    """Show tables of start-up times, of throughput, and of the kernels' speed, with a row for each model and GPU.

    Ratios are geometric means over pairs of starts, or of measurements, with their 95 % intervals.
    """
    groups = _groups(records)
    lines = [
        "| GPU | model | caches | pairs | seconds without | with | with / without | torch.compile without | with |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in groups.items():
        for start, caches in STARTS.items():
            if pairs := _pairs(found, start):
                seconds = [f"{median(each['start_s'] for each in way):.1f}" for way in zip(*pairs, strict=True)]
                compiles = [
                    [each["compile_s"] for each in way if each.get("compile_s")] for way in zip(*pairs, strict=True)
                ]
                cells = [*seconds, _ratio(_change(pairs, slower=True))]
                cells += [f"{median(each):.1f}" if each else "" for each in compiles]
                lines.append(f"| {' | '.join(name)} | {caches} | {len(pairs)} | {' | '.join(cells)} |")
    for field, title in _MEASURED.items():
        measured = {name: found for name, found in groups.items() if any(each.get(field) for each in found)}
        if measured:
            lines += ["", f"{title}:", "", f"| GPU | model | {' | '.join(TASKS)} |", "|---" * (len(TASKS) + 2) + "|"]
        for name, found in measured.items():
            lines.append(f"| {' | '.join(name)} | {' | '.join(_speed(found, field, task) for task in TASKS)} |")
    heads = ("GPU", "model", "same tokens", "largest difference of log-probabilities", *ANSWERS)
    lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, found in groups.items():
        same, tokens = (sum(each["apart"][field] for each in found) for field in ("same", "tokens"))
        largest = max(each["apart"]["logprobs"] for each in found)
        cells = [f"{same} of {tokens}", f"{largest:.3f}", *answers(found[-1].get("answered", {}))]
        lines.append(f"| {' | '.join((*name, *cells))} |")
    return "\n".join(lines)


def draw(records: Sequence[Record]) -> str:
    """A bar with an interval for the starts of each model, and for its throughput; the line is the engine without."""
    lines, top = [], 0.0
    for title, rows in (
        ("Speed of starts with the plugin, without it = 1; lines are intervals", [*_starts(records)]),
        ("Tokens per second with the plugin, without it = 1", [*_speeds(records)]),
    ):
        if not rows:
            continue
        lines.append(text(NAMES + PANEL / 2, top + 22, title, ' font-weight="600" text-anchor="middle"'))
        first = top + 40
        for number, (name, change) in enumerate(rows):
            lines += bar(name, *change, y=first + (BAR + 5) * number)
        top = first + (BAR + 5) * len(rows) + SPACE
        place = f'x1="{at(1.0):.1f}" x2="{at(1.0):.1f}" y1="{first - 6}" y2="{top - SPACE}"'
        lines.append(f'<line {place} stroke="{GREY}" stroke-dasharray="3 2"/>')
    width = NAMES + PANEL + VALUE + 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}"'
    back = f'<rect width="{width}" height="{top}" fill="#ffffff"/>'
    return "\n".join([f'{head} font-family="system-ui, sans-serif" font-size="11">', back, *lines, "</svg>", ""])


def _groups(records: Sequence[Record]) -> Mapping[tuple[str, str], list[Record]]:
    """The records without a failure by GPU and model."""
    groups: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if "failed" not in record:
            width = record["tensor_parallel"]
            groups[f"{width} x " * (width > 1) + record[WITH]["device_name"], record["model"]].append(record)
    return groups


_Ends = tuple[float, float, float]  # a ratio, and the ends of its interval


def _starts(records: Sequence[Record]) -> Iterator[tuple[str, _Ends]]:
    for (where, model), found in _groups(records).items():
        for start, caches in STARTS.items():
            pairs = _pairs(found, start)
            if len(pairs) > 1:
                yield f"{where}, {model}, {caches} caches, {len(pairs)} pairs", _change(pairs)


def _speeds(records: Sequence[Record]) -> Iterator[tuple[str, _Ends]]:
    for (where, model), found in _groups(records).items():
        for field, task in product(_MEASURED, TASKS):
            if (times := _times(found, field, task)) and len(times[0]) > 1:
                change = change_of(*times, error=ERROR)
                kernels = "kernels of " * (field != "seconds")
                yield f"{where}, {model}, {kernels}{task}", (change.gain, change.low, change.high)


def _pairs(found: Sequence[Record], start: str) -> list[tuple[Record, Record]]:
    return [(each[WITHOUT], each[WITH]) for each in found if each["start"] == start]


def _change(pairs: Sequence[tuple[Record, Record]], *, slower: bool = False) -> _Ends:
    """How many times as fast, or as long, the starts with the plugin are; without an interval for a single pair."""
    without, armed = ([each["start_s"] for each in way] for way in zip(*pairs, strict=True))
    before, after = (armed, without) if slower else (without, armed)
    if len(pairs) == 1:
        return before[0] / after[0], 0.0, 0.0
    change = change_of(before, after, error=ERROR)
    return change.gain, change.low, change.high


def _ratio(change: _Ends) -> str:
    gain, low, high = change
    return f"{gain:.3f} ({low:.3f} to {high:.3f})" if high else f"{gain:.3f}"


def _times(found: Sequence[Record], field: str, task: str) -> tuple[list[float], list[float]] | None:
    """All seconds of a task, or its kernels' microseconds, without the plugin and with it, in pairs.

    Seconds of decoding are a difference of two times. Where noise makes it negative, the pair is left out.
    """
    tasks = [each[field][task] for each in found if task in each.get(field, {})]
    pairs = [pair for each in tasks for pair in zip(each[WITHOUT], each[WITH], strict=True) if min(pair) > 0]
    return ([without for without, _ in pairs], [armed for _, armed in pairs]) if pairs else None


def _speed(found: Sequence[Record], field: str, task: str) -> str:
    """Tokens per second without the plugin, or its kernels' milliseconds, and the speed-up with it."""
    if (times := _times(found, field, task)) is None:
        return ""
    word, count = task.split()
    tokens = int(count) * (DECODED if word == "decode" else 1)
    without, armed = times
    middle = f"{tokens / median(without):,.0f}" if field == "seconds" else f"{median(without) / 1e3:.2f}"
    if len(without) == 1:
        return f"{middle}, {without[0] / armed[0]:.3f}"
    change = change_of(without, armed, error=ERROR)
    return f"{middle}, {_ratio((change.gain, change.low, change.high))}"
