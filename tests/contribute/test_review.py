"""What a pull request with a table would be refused for. Each test damages a real contribution in one way."""

import shutil
import subprocess
from pathlib import Path

import pytest

from diode_lut.contribute.judge import bootstrap, review
from diode_lut.dataset import Timing, read_dataset
from diode_lut.errors import TableError
from diode_lut.table import Candidate, read_table, to_bytes, write_table
from diode_lut.templates.config import ATEN, Config
from tests.commands import call
from tests.contribute.contributions import (
    PEOPLE,
    SHIPPED,
    TABLES,
    changed,
    contribute,
    pack_records,
    rebuild,
    some_records,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    contribute(folder)
    return folder


@pytest.fixture
def table(original: Path, tmp_path: Path) -> Path:
    """The table of a good contribution, to be damaged."""
    shutil.copytree(original, tmp_path / "contribution")
    return tmp_path / "contribution" / "tables" / "nvidia-h200.json"


def dataset_of(table: Path) -> Path:
    return table.parent / "datasets" / "nvidia-h200-some.msgpack.zst"


def faults(table: Path) -> list[TableError]:
    return [error for error in review(table, table.read_bytes()) if not error.note]


def only_fault(table: Path) -> str:
    """The one thing that is wrong, as a line that begins with the place."""
    (fault,) = faults(table)
    return str(fault).removeprefix(f"{table}:")


def notes(table: Path) -> list[str]:
    return [error.reason for error in review(table, table.read_bytes()) if error.note]


def test_a_good_contribution_has_figures_only(table: Path) -> None:
    """Nothing is wrong, and notes have gain with its interval and regret, measured and held out."""
    assert faults(table) == []
    measured, held_out = notes(table)
    assert measured.startswith("24 measured problems: gain over aten 1.")
    assert "bootstrap), regret 0." in measured
    assert " problems, held out, of a table built from the others: gain over aten " in held_out
    assert read_table(table).provenance["measured_by"] == PEOPLE


def test_gains_that_are_not_those_of_the_timings_are_noted(table: Path) -> None:
    """Check compares gains with the timings, and the software's versions. A table as it was built has no note."""
    entries, dataset = read_table(table).entries, dataset_of(table)
    assert call("check", table, "--dataset", dataset).output == "1 file, 0 faults\n"
    timed = next(each for each in entries if (each.best.gain_permille or 0) > 1100)
    wrong = timed._replace(candidates=(timed.best._replace(gain_permille=1050), *timed.candidates[1:]))
    others = [wrong if each is timed else each for each in entries]
    newer = {**read_table(table).provenance, "torch": "2.99.0"}
    write_table(changed(table, entries=others, provenance=newer), table)
    checked = call("check", table, "--dataset", dataset)
    assert checked.exit_code == 0
    assert f"provenance.torch: 2.99.0, but {dataset.name} has timings of 2.11.0" in checked.output
    said = f"the gain is 1050, but the timings say {timed.best.gain_permille} for {timed.best.config} (build from them"
    assert said in checked.output
    assert "1 file, 0 faults, 2 notes" in checked.output
    other = timed.best._replace(config=Config.parse("triton_mm 256x256x16 g1 s1 w8"))
    moved = timed._replace(candidates=(other,))
    write_table(changed(table, entries=[moved if each is timed else each for each in entries]), table)
    said = f"the gain is {other.gain_permille}, but no timing is of {other.config} (take it out, or build from timings"
    assert said in call("check", table, "--dataset", dataset).output


def test_a_later_run_has_figures_of_its_own(table: Path) -> None:
    """Timings in afterwards/ are no part of the table, and tell what its answers gain on another day."""
    (table.parent / "datasets" / "afterwards").mkdir()
    pack_records(some_records(12), table.parent / "datasets" / "afterwards" / "nvidia-h200.msgpack.zst")
    assert faults(table) == []
    assert notes(table)[-1].startswith("12 problems of afterwards/nvidia-h200.msgpack.zst: gain over aten 1.")


def test_a_dataset_that_is_missing_is_named(table: Path) -> None:
    """Without the dataset nobody can build the table again."""
    dataset_of(table).unlink()
    message = only_fault(table)
    assert "provenance.datasets[0]: no file in datasets/ has the digest sha256:" in message
    assert message.endswith("(add the dataset that the table was built from)")


def test_a_dataset_that_was_changed_is_suspected(table: Path) -> None:
    """If another dataset is there instead, the message names it."""
    pack_records(some_records(23), dataset_of(table))
    assert "if it is one of datasets/nvidia-h200-some.msgpack.zst, that was changed afterwards" in only_fault(table)


def test_a_dataset_that_is_damaged_is_no_evidence(table: Path) -> None:
    """What cannot be read counts as missing."""
    data = bytearray(dataset_of(table).read_bytes())
    data[0] ^= 0xFF
    dataset_of(table).write_bytes(data)
    assert "no file in datasets/ has the digest" in only_fault(table)


def test_a_row_that_was_edited_is_found(table: Path) -> None:
    """It is named with its line, what it says, and what the timings say."""
    entries = list(read_table(table).entries)
    entries[3] = entries[3]._replace(candidates=(Candidate(ATEN),))
    write_table(changed(table, entries=entries), table)
    message = only_fault(table)
    assert "entries[3]: was edited after it was built: the datasets give triton_bmm " in message
    assert message.endswith(", not aten (undo the change, or say with a note why it was made)")


def test_a_gain_that_was_embellished_is_found(table: Path) -> None:
    """The config is right, and the number is not: both numbers are named."""
    entries = list(read_table(table).entries)
    best, *others = entries[0].candidates
    entries[0] = entries[0]._replace(candidates=(best._replace(gain_permille=9000), *others))
    write_table(changed(table, entries=entries), table)
    message = only_fault(table)
    assert "entries[0]: was edited after it was built: the datasets give triton_bmm " in message
    assert f"({(best.gain_permille or 0) / 1000:.3f}), not {best.config} (9.000) (undo the change" in message


def test_rows_that_were_removed_or_added_are_found(table: Path) -> None:
    """Each key that only one of the two tables has is said."""
    entries = list(read_table(table).entries)
    b = entries[1].b
    assert b is not None
    entries[1] = entries[1]._replace(b=(b[0] + 1, b[1] + 1))
    write_table(changed(table, entries=sorted(entries)), table)
    added, missing = sorted(fault.reason for fault in faults(table))[::-1]
    assert "was edited after it was built: the datasets give no row with this key" in added
    assert missing.startswith("1 row missing that the datasets give, such as bmm float16 nn")


def test_a_note_is_what_a_change_by_hand_needs(table: Path) -> None:
    """A row with a note passes, and a remark says that no timing stands behind it."""
    entries = list(read_table(table).entries)
    entries[3] = entries[3]._replace(candidates=(Candidate(ATEN),), problems=None, note="for its numerics")
    write_table(changed(table, entries=entries), table)
    (remark,) = (text for text in notes(table) if "note" in text)
    assert remark == "1 row with a note: written or changed by a person, without timings"


def test_the_provenance_is_complete(table: Path) -> None:
    """Every field that is missing is said, with how to get it."""
    pack_records(some_records(24), dataset_of(table), read_dataset(SHIPPED).header._replace(driver=""), measured_by="")
    rebuild(table.parents[1])
    first, second = sorted(fault.reason for fault in faults(table))
    assert first.startswith("driver is missing (build the table from datasets of `collect`")
    assert second.startswith("measured_by is missing (name who measured: `adopt --measured-by NAME` again")


def test_a_provenance_that_was_edited_is_found(table: Path) -> None:
    """Who measured is in the dataset, too: nobody takes the place of another in the table alone."""
    provenance = {**read_table(table).provenance, "measured_by": "Charles Babbage"}
    write_table(changed(table, provenance=provenance), table)
    assert f"provenance: measured_by is 'Charles Babbage', but the datasets give {PEOPLE!r}" in only_fault(table)


def test_a_table_without_gain_is_refused(table: Path) -> None:
    """Where aten is as good as everything, no table is needed."""
    records = [
        each._replace(timings=tuple(Timing(timing.config, 1000.0) for timing in each.timings))
        for each in some_records(24)
    ]
    pack_records(records, dataset_of(table))
    rebuild(table.parents[1])
    assert "its gain over aten may be none (95 %: from 1.000; " in only_fault(table)


@pytest.mark.parametrize("name", ["mine.json", "NVIDIA-H200.json", "nvidia-h200.JSON"])
def test_a_table_is_named_after_its_hardware(table: Path, name: str) -> None:
    """Any other name is refused, with the right one."""
    other = table.rename(table.with_name(name))
    assert f"hardware: the file is called {name} (a table is named after its hardware: nvidia-h200.json)" in str(
        faults(other)[0]
    )


def test_a_table_may_have_a_short_name_of_a_well_known_gpu(table: Path) -> None:
    """People call the device NVIDIA H200 an H200, and the driver's name of an H100 is longer than anybody writes."""
    assert not faults(table.rename(table.with_name("h200.json")))


def test_rows_that_were_left_to_a_model_are_refused(table: Path) -> None:
    """Others could not build the table without the model and its thresholds."""
    provenance = {**read_table(table).provenance, "pruned_with": "sha256:0"}
    write_table(changed(table, provenance=provenance), table)
    assert "rows were left to a model (build the table without --prune-with)" in faults(table)[-1].reason


def test_a_model_must_know_its_datasets(table: Path) -> None:
    """The shipped model was trained on datasets that this contribution does not have; a damaged one is none."""
    model = table.with_name("nvidia-h200.mlp.safetensors")
    shutil.copy(TABLES / model.name, model)
    assert "nvidia-h200.mlp.safetensors was trained on sha256:" in only_fault(table)
    model.write_bytes(b"nothing")
    assert "the model cannot be used: " in only_fault(table)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="signs with ssh-keygen")
def test_a_signature_says_whose_key_it_is(table: Path) -> None:
    """A signed table names the key; if it was edited afterwards, that is a fault."""
    key = table.parents[1] / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "diode-lut", "-f", key, table], check=True)
    assert notes(table)[0].startswith('signed: Good "diode-lut" signature with ED25519 key SHA256:')
    table.write_bytes(to_bytes(changed(table, entries=read_table(table).entries[1:])))
    assert any("was edited after it was signed" in fault.reason for fault in faults(table))


def test_the_bootstrap_finds_the_interval() -> None:
    """It is narrow around equal gains, has the mean inside, and is the same each time."""
    assert bootstrap([1.5] * 10) == pytest.approx((1.5, 1.5, 1.5))
    interval = bootstrap([1.0, 1.1, 1.2, 1.3, 2.0])
    assert interval.low < interval.value < interval.high
    assert interval == bootstrap([1.0, 1.1, 1.2, 1.3, 2.0])
