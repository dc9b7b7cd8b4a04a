import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diode_lut.cli import build as commands
from diode_lut.cli import main
from diode_lut.contribute.judge import comparable, sample_of
from diode_lut.dataset import DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.hardware import Hardware, detect_hardware
from diode_lut.measure import MEASURERS, METHODS
from diode_lut.measure.problems import read_problems
from diode_lut.problem import Problem
from diode_lut.table import Candidate, Entry, Table, decode_entry, read_table, write_table
from diode_lut.templates.config import ATEN, Config
from tests.commands import call
from tests.contribute import measurers, recorded
from tests.contribute.measurers import KERNELS, LOOPED, best, gain, problems, record_kernels


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
    another = here._replace(name="Another CPU")
    result = verified(tmp_path, rows(60), another)
    assert result.exit_code == 1
    assert f"is for {another}, this is {here}" in result.stdout
    assert f"is for {another}, and may answer on {here} too" in result.stderr
    assert "rows measured: 48;" in result.stdout


def test_a_table_that_never_answers_here_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For another architecture nothing is started; the message says what differs."""
    monkeypatch.setitem(MEASURERS, "autotune", "tests.contribute.measurers:not_there")
    here = detect_hardware("cpu")
    other = verified(tmp_path, rows(60), here._replace(arch="cpu-other"))
    assert (other.exit_code, other.stdout) == (2, "")
    assert (
        f"table.json: is for {here._replace(arch='cpu-other')}, this is {here}: its answers are never" in other.stderr
    )
    assert "nothing was measured" in other.stderr


def test_the_first_row_is_measured_in_any_case(tmp_path: Path) -> None:
    """With a budget that is over at once, the row that starts everything is measured, and no other."""
    result = verified(tmp_path, rows(60), None, "--budget", "1e-9")
    assert "1 of 48 rows measured once" in result.stderr
    assert "rows measured: 1;" in result.stdout


def test_noise_is_no_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two measurements differ much, the table is not blamed, and not confirmed either."""
    monkeypatch.setattr(measurers, "noise", 0.3)
    result = verified(tmp_path, rows(100))
    assert result.exit_code == 1
    assert "too noisy" in result.stdout
    assert "measure on an idle machine" in result.stdout


def test_rows_for_recorded_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows for generated kernels are compared where all of their kernels are recorded, and no others are."""
    for stage in METHODS["sweep"]:
        monkeypatch.setitem(MEASURERS, stage, f"tests.contribute.measurers:{stage}")
    monkeypatch.setitem(METHODS, "autotune", METHODS["sweep"])
    record_kernels(tmp_path / "kernels")
    of_kernels = [
        Entry(each.op, *(None,) * 7, (Candidate(LOOPED, 2000),), variant=each.variant, x=(64, 64), r=(each.r, each.r))
        for each in KERNELS
    ]
    wide = of_kernels[0]._replace(r=(200, 300), problems=9)
    result = verified(tmp_path, [*of_kernels, wide], None, "--kernels", str(tmp_path / "kernels"))
    assert f"rows measured: {len(KERNELS)};" in result.stdout, result.output
    assert "drifted by more than 10%: 0" in result.stdout
    assert "rows measured: 0;" in verified(tmp_path, [*of_kernels, wide]).stdout


def test_few_rows_decide_nothing(tmp_path: Path) -> None:
    """Rows for ranges and those that answer aten are not measured; what is left may be too little."""
    entries = rows(40)
    wide = [row._replace(m=(row.m[0], row.m[0] + 1000)) for row in entries[:20] if row.m]
    library = [row._replace(candidates=(Candidate(ATEN),)) for row in entries[20:36]]
    result = verified(tmp_path, [*wide, *library, *entries[36:]])
    assert result.exit_code == 1
    assert "undecided" in result.stdout
    assert "rows measured: 4;" in result.stdout
    assert "too few rows for a verdict: the table has no more that can be compared" in result.stdout
    some = verified(tmp_path, entries, None, "--rows", "8")
    assert "too few rows for a verdict: give a larger --budget, or more --rows" in some.stdout


def test_joined_matmuls_are_not_compared() -> None:
    """Their gain depends on how the columns are shared out, which a row does not say."""
    joined = decode_entry(
        {
            "op": "joined_mm",
            "variant": "two",
            "dtype": "bfloat16",
            "layout": "nt",
            "align": 16,
            "m": [16, 16],
            "n": [512, 512],
            "k": [256, 256],
            "configs": [{**Config.parse("triton_joined_mm 16x64x64 g8 s4 w4").to_json(), "gain_permille": 1500}],
        }
    )
    entries = rows(10)
    device = detect_hardware("cpu")
    assert comparable(Table(device, [*entries, joined])) == comparable(Table(device, entries))


def test_the_sample_has_the_largest_gains_and_others() -> None:
    """Half of the sample are the rows that gain most, and it is the same each time."""
    found = comparable(Table(detect_hardware("cpu"), rows(100)))
    assert found == {(each,): pytest.approx(gain(each, best(each))) for each in problems(100)}
    sample = sample_of(found, 20)
    assert sample == sample_of(found, 20)
    assert len(sample) == 20
    assert list(sample.values())[:10] == [1.6] * 10
    assert min(sample.values()) < 1.6
    assert sample_of(found, 1000).items() == found.items()


def test_a_row_is_compared_where_its_gain_was_recorded() -> None:
    """That is at one problem, with its epilogue, or at both ends of one range; what else it was, rows do not say."""
    first, *_, last = problems(40)
    (row, *_) = rows(40)
    ends = (first.m, last.m)
    fused = row._replace(epilogue="light", problems=1)
    known = [fused, row._replace(m=ends, problems=2)]
    unknown = [
        row._replace(m=(100, 200), problems=3),
        row._replace(m=(300, 400), n=(64, 128), problems=2),
        row._replace(m=(500, 600)),
        row._replace(op="int_mm", dtype="int8", m=(700, 800), problems=2),
        row._replace(m=None),
        row._replace(m=(8, 8), candidates=(Candidate(ATEN),)),
    ]
    found = comparable(Table(detect_hardware("cpu"), [*known, *unknown]))
    assert list(found) == [(first._replace(epilogue="light"),), (first, last)]


def test_datasets_tell_where_other_rows_were_recorded(tmp_path: Path) -> None:
    """With the timings at hand, rows are compared at all of their problems, unless these are many or not all there."""
    measured = problems(10)
    (row, *_) = rows(10)
    header = Header(detect_hardware("cpu"))
    with DatasetWriter(tmp_path / "timings.msgpack", header) as writer:
        for problem in measured:
            writer.append(Record(problem, (Timing(ATEN, 1000.0),)))
    dataset = read_dataset(tmp_path / "timings.msgpack")
    few = row._replace(m=(measured[0].m, measured[2].m), problems=3)
    many = row._replace(m=(measured[3].m, measured[7].m), problems=5)
    more = row._replace(m=(measured[8].m, 1000), problems=3)
    between = row._replace(m=(1001, 2000), problems=2)
    found = comparable(Table(detect_hardware("cpu"), [few, many, more, between]), [dataset])
    assert list(found) == [tuple(measured[:3])]


def test_the_gain_of_a_range_is_the_mean_of_its_problems(tmp_path: Path) -> None:
    """A row with the geometric mean holds; one with the gain of its smallest problem only has drifted, at both."""
    small = [each for each in problems(200) if each.m % 5 == 1 and each.m % 4 == 0]  # they gain 1.3, and 4 rows on 1.2
    (row, *_) = rows(1)

    def wide(smallest: Problem, recorded: float) -> Entry:
        answer = Candidate(best(smallest), round(1000 * recorded))
        return row._replace(m=(smallest.m, smallest.m + 4), problems=2, candidates=(answer,))

    table = [wide(each, (1.3 * 1.2) ** 0.5) for each in small[1:]]
    assert "drifted by more than 10%: 0, " in verified(tmp_path, table).stdout
    result = verified(tmp_path, [wide(small[0], 1.5), *table])
    assert f"    {small[0]} and 1 more: recorded 1.500, measured 1.249" in result.stdout
    assert read_problems(tmp_path / "drifted.json") == [small[0], small[0]._replace(m=small[0].m + 4)]


@pytest.mark.slow
def test_the_h200s_table_holds_on_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows for ranges and epilogues are measured, too; with 30 % of the rows swapped it does not hold."""
    recorded.play_back(monkeypatch)
    hardware = read_dataset(recorded.RUNS[0]).header.hardware
    monkeypatch.setattr(commands, "detect_hardware", lambda _: hardware)
    output = ["--device", "cpu", "-o", tmp_path / "drifted.json"]
    result = call("verify", "nvidia-h200", *output)
    assert (result.exit_code, "nvidia-h200.json: holds on NVIDIA H200" in result.stdout) == (0, True)
    assert "rows measured: 46;" in result.stdout  # the problems of the others have no final times
    shipped = read_table(recorded.TABLES / "nvidia-h200.json")
    sample = comparable(shipped, [read_dataset(path) for path in recorded.RUNS])
    assert len(sample) > 850
    assert {len(each) for each in sample} == {1, 2, 3, 4}
    assert {each.epilogue for row in sample for each in row} == {"none", "light", "medium", "heavy"}
    write_table(Table(hardware, swapped(list(shipped.entries), 0.3)), tmp_path / "swapped.json")
    result = call("verify", tmp_path / "swapped.json", *output)
    assert (result.exit_code, "swapped.json: does not hold on NVIDIA H200" in result.stdout) == (1, True)
    assert read_problems(tmp_path / "drifted.json")


def test_without_a_table_for_this_device_one_must_be_named() -> None:
    """No shipped table is for a CPU, so there is nothing to verify by default."""
    result = CliRunner().invoke(main, ["verify", "--device", "cpu"])
    assert result.exit_code == 2
    assert "name one, or make one with `diode-lut adopt --budget 10`" in result.stderr
