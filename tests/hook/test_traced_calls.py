"""The calls of compiled graphs that ``compare`` traces."""

import json
from pathlib import Path

import pytest

from tests.forks import Forks

CALLS = """
import torch
from diode_lut import probe
from diode_lut.hook.graphs import _TRACE

class Graph: pass

graph, calls = Graph(), 0

def step():
    with _TRACE.calling(graph):
        torch.ones(3).cos()
    probe.mark_step()
"""

ENOUGH = """
while not _TRACE._is_ended and calls < 1000:
    step()
    calls += 1
print(25 < calls <= 502, len(probe._marks))
with torch.profiler.profile():
    step()
step()
print(len(probe._marks))
"""

WHOLE_STEPS = """
import collections, json

others = [Graph(), Graph()]
while not _TRACE._is_ended and calls < 1000:
    step()
    for other in others:
        with _TRACE.calling(other):
            torch.ones(3).sin()
    calls += 1
events = json.loads((probe.directory() / _TRACE.finish()).read_text())["traceEvents"]
counts = collections.Counter(event["name"] for event in events if event["name"].startswith(probe.CALL))
print(len(counts), len(set(counts.values())))
"""

OWN_PROFILER = """
step()
with torch.profiler.profile() as profile:
    step()
print(any("cos" in event.name for event in profile.events()), _TRACE.finish())
"""


@pytest.mark.parametrize(
    ("program", "printed", "traces"),
    [
        pytest.param(ENOUGH, "True 1\n3\n", 1, marks=pytest.mark.slow),
        (WHOLE_STEPS, "3 1\n", 1),
        (OWN_PROFILER, "True None\n", 0),
    ],
    ids=["the first calls", "whole steps", "none if the program has a profiler"],
)
def test_first_calls_are_traced(program: str, printed: str, traces: int, after_inductor: Forks, tmp_path: Path) -> None:
    """Steps count after the traced calls, and a profiler of the program has what it asked for."""
    done = after_inductor.run("-c", CALLS + program, _DIODE_LUT_PROBE=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
    found = [json.loads(path.read_text()) for path in tmp_path.glob("*.trace.json")]
    assert len(found) == traces
