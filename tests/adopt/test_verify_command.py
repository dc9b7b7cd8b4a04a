from __future__ import annotations

import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diode_lut.adopt.verify import sample_of
from diode_lut.cli import main
from diode_lut.collect.problems import read_problems
from diode_lut.domain.hardware import Hardware, detect_hardware
from diode_lut.kernels.config import ATEN
from diode_lut.table import Candidate, Entry, Table, write_table
from tests.adopt import measurers
from tests.adopt.measurers import best, gain, problems


def rows(count: int) -> list[Entry]:
    """A row for each problem, with the config that is best and its gain."""
    return [
        Entry(
            *(problem.op, problem.dtype, problem.layout, problem.align),
            *((size, size) for size in problem.sizes),
            (Candidate(best(problem), round(1000 * gain(problem, best(problem)))),),
        )
        for problem in problems(count)
    ]


def swapped(entries: list[Entry], share: float) -> list[Entry]:
    """The rows, of which a share have configs and gains of each other."""
    source = random.Random(0)
    chosen = source.sample(range(len(entries)), round(share * len(entries)))
    changed = list(entries)
    for one, other in zip(chosen, [*chosen[1:], chosen[0]], strict=True):
        changed[one] = entries[one]._replace(candidates=entries[other].candidates)
    return changed


def verified(directory: Path, entries: list[Entry], hardware: Hardware | None = None, *options: str) -> Result:
    write_table(Table(hardware or detect_hardware("cpu"), entries), directory / "table.json")
    arguments = ["verify", str(directory / "table.json"), "--device", "cpu", "-o", str(directory / "drifted.json")]
    return CliRunner().invoke(main, [*arguments, *options])


def test_a_good_table_holds(tmp_path: Path) -> None:
    """Where all gains are measured again, the exit code is 0, and no problem file is written."""
    result = verified(tmp_path, rows(100))
    assert result.exit_code == 0, result.output
    assert f"{tmp_path / 'table.json'}: holds on {detect_hardware('cpu')}" in result.stdout
    assert "rows measured: 48; difference between two measurements of a gain: 0.0%" in result.stdout
    assert not (tmp_path / "drifted.json").exists()


def test_a_table_with_swapped_rows_does_not_hold(tmp_path: Path) -> None:
    """With 30 % of the rows swapped the exit code is 1, and problems of swapped rows are a problem file."""
    entries = rows(100)
    changed = swapped(entries, 0.3)
    result = verified(tmp_path, changed)
    assert result.exit_code == 1
    assert "table.json: does not hold on " in result.stdout
    wrong = {problem for problem, old, new in zip(problems(100), entries, changed, strict=True) if old != new}
    drifted = read_problems(tmp_path / "drifted.json")
    assert len(drifted) >= 5
    assert wrong.issuperset(drifted)


def test_a_table_of_another_device_is_named(tmp_path: Path) -> None:
    """A table for another device of the same architecture is measured, but it never counts as this device's."""
    here = detect_hardware("cpu")
    result = verified(tmp_path, rows(60), here._replace(name="Another CPU"))
    assert result.exit_code == 1
    assert f"is for Another CPU ({here.arch}, {here.sm_count} SMs), this is {here}" in result.stdout
    other = verified(tmp_path, rows(60), here._replace(arch="cpu-other"))
    assert other.exit_code == 1
    assert "it is for" in other.stderr


def test_noise_is_no_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two measurements differ much, the table is not blamed, and not confirmed either."""
    monkeypatch.setattr(measurers, "noise", 0.3)
    result = verified(tmp_path, rows(100))
    assert result.exit_code == 1
    assert "too noisy" in result.stdout
    assert "measure on an idle machine" in result.stdout


def test_few_rows_decide_nothing(tmp_path: Path) -> None:
    """Rows for ranges and those that answer aten are not measured; what is left may be too little."""
    entries = rows(40)
    wide = [row._replace(m=(row.m[0], row.m[0] + 1000)) for row in entries[:20] if row.m]
    library = [row._replace(candidates=(Candidate(ATEN),)) for row in entries[20:36]]
    result = verified(tmp_path, [*wide, *library, *entries[36:]])
    assert result.exit_code == 1
    assert "undecided" in result.stdout
    assert "rows measured: 4;" in result.stdout


def test_the_sample_has_the_largest_gains_and_others() -> None:
    """Half of the sample are the rows that gain most, and it is the same each time."""
    table = Table(detect_hardware("cpu"), rows(100))
    sample = sample_of(table, 20)
    assert sample == sample_of(table, 20)
    assert len(sample) == 20
    assert list(sample.values())[:10] == [1.6] * 10
    assert min(sample.values()) < 1.6
    assert sum(sample_of(table, 1000).values()) == pytest.approx(sum(gain(each, best(each)) for each in problems(100)))


def test_without_a_table_for_this_device_one_must_be_named() -> None:
    """No shipped table is for a CPU, so there is nothing to verify by default."""
    result = CliRunner().invoke(main, ["verify", "--device", "cpu"])
    assert result.exit_code == 2
    assert "name one, or make one with `diode-lut adopt`" in result.stderr
