"""Prints what this process decides, and what Inductor's caches are keyed by, as JSON.

``python decide.py COUNT TABLES``: COUNT problems are drawn by a fixed seed; TABLES, a JSON list, are the user's own.
"""

import hashlib
import json
import pickle
import sys

import torch
from torch._inductor import config as inductor_config

import diode_lut
from diode_lut.decide.catalog import find_hardware, sources_for
from diode_lut.decide.choosers import registered
from diode_lut.decide.decide import Axis, decide
from diode_lut.hook.snapshot import InductorSnapshot
from diode_lut.measure.problems import random_problems

H200 = "nvidia-h200"
KINDS = {"ops": ("mm", "addmm", "bmm"), "dtypes": ("float16", "bfloat16"), "layouts": ("nn", "nt")}


def main(count: str, tables: str) -> None:
    diode_lut.config.tables = json.loads(tables)
    torch.set_num_threads(2)  # which is part of what a CPU is to a model
    problems = random_problems(int(count), seed=0, log_normal=True, **KINDS)
    hardware = find_hardware(H200, diode_lut.config.tables)
    decisions = [diode_lut.select(problem, hardware=hardware) for problem in problems]
    sources, axis = sources_for(hardware, diode_lut.config.copy(), registered()), Axis(("m",), 1, None)
    pieces = [decide(sources, problem, axes=(axis,)).pieces(3, library=True) for problem in problems[::50]]
    portable = inductor_config.save_config_portable(ignore_private_configs=False)
    report = {
        "decisions": [
            (each.tier, list(map(str, each.configs[:4])), each.confidence, each.expected_time) for each in decisions
        ],
        "dynamic": [[(piece.high, str(piece.config)) for piece in each] for each in pieces],
        "identity": repr(InductorSnapshot().identity),
        "key": hashlib.sha256(pickle.dumps(portable["inductor_choices_class"])).hexdigest(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
