"""The catalog: finding tables, and which of them speak for some hardware."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diode_lut.decide import catalog
from diode_lut.decide.catalog import (
    distrusted,
    find_hardware,
    find_path,
    find_tables,
    open_table,
    tiers_for,
    warn_of_useless,
)
from diode_lut.decide.decide import Sources
from diode_lut.errors import HardwareError, TableError, printable
from diode_lut.files import own_tables_directory
from diode_lut.hardware import Hardware

H200 = Hardware("NVIDIA H200", "sm_90", 132)
H100 = Hardware("NVIDIA H100 80GB HBM3", "sm_90", 132)
A100 = {"name": "NVIDIA A100-SXM4-80GB", "arch": "sm_80", "sm_count": 108}
ATEN = {"configs": [{"template": "aten"}]}
BAD = {"configs": [{"template": "nothing"}]}

Write = Callable[..., Path]


def names(hardware: Hardware, *user_tables: str) -> dict[str, list[str]]:
    """The file names of each tier's tables."""
    return {
        tier.name: [table.path.name for table in tier.sources if table.path]
        for tier in tiers_for(hardware, user_tables)
        if tier.name != "model"
    }


def left_out(path: Path) -> str:
    """How the warning about a file begins that cannot be used."""
    return f"{'table' if path.suffix == '.json' else 'model'} left out: {path}"


def test_tables_are_listed_users_first(shipped: Path, table_file: Write) -> None:
    """The user's tables come in their order, then the shipped ones by file name."""
    for name in ("tables/nvidia-h200.json", "tables/a.json"):
        table_file(name, ATEN)
    mine = [str(table_file(name, ATEN)) for name in ("second.json", "first.json")]
    files = find_tables(mine)
    assert [(file.name, file.shipped) for file in files] == [
        ("second", False),
        ("first", False),
        ("a", True),
        ("nvidia-h200", True),
    ]
    assert files[0].hardware == Hardware("NVIDIA H200", "sm_90", 132, ("h200-141gb",))


@pytest.mark.parametrize("name", ["big-one", "Big One", "NVIDIA H200", "nvidia_h200", "h200-141gb"])
def test_shipped_table_by_name(shipped: Path, table_file: Write, name: str) -> None:
    """A shipped table goes by its file's name, its hardware's and that one's aliases, however they are spelt."""
    path = table_file("tables/big-one.json", ATEN)
    assert find_path(name) == path
    assert find_hardware(name, ()).name == "NVIDIA H200"


def test_a_file_wins_over_a_name(shipped: Path, table_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a file is taken as a file, even if a shipped table is called the same."""
    table_file("tables/nvidia-h200.json", ATEN)
    path = table_file("nvidia-h200", ATEN)
    monkeypatch.chdir(path.parent)
    assert find_path("nvidia-h200") == Path("nvidia-h200")


def test_unknown_name(shipped: Path, table_file: Write) -> None:
    """What is neither a file nor a name is an error that lists the names, and counts as unreadable."""
    table_file("tables/nvidia-h200.json", ATEN)
    with pytest.raises(TableError, match=r"^h300: no such file, and no table .* \(shipped: nvidia-h200\)") as raised:
        find_path("h300")
    assert isinstance(raised.value.__cause__, OSError)
    with pytest.raises(HardwareError, match=r"h300: no table is for .* \(tables: nvidia-h200\)"):
        find_hardware("h300", ())


def test_path_that_the_system_refuses(shipped: Path) -> None:
    """A path that cannot even be looked at is an error like any other, and costs only itself."""
    with pytest.raises(TableError, match="x: cannot be read: File name too long"):
        find_path("x" * 5000)
    assert find_tables(["x" * 5000]) == []


def test_hardware_of_a_users_table(shipped: Path, table_file: Write) -> None:
    """Hardware goes by the names in the user's tables as well."""
    path = table_file("mine.json", ATEN, hardware=A100)
    assert find_hardware("mine", [str(path)]).arch == "sm_80"


def test_device_comes_before_the_same_architecture(shipped: Path, table_file: Write) -> None:
    """Tables for the device itself and for others of its architecture and size are tiers of their own."""
    table_file("tables/a100.json", ATEN, hardware=A100)
    table_file("tables/h100.json", ATEN, hardware=H100._asdict())
    table_file("tables/h200.json", ATEN)
    assert names(H200) == {"user": [], "device": ["h200.json"], "same_arch": ["h100.json"]}
    assert names(H100) == {"user": [], "device": ["h100.json"], "same_arch": ["h200.json"]}
    assert names(Hardware("GH200", "sm_90", 132)) == {"user": [], "device": [], "same_arch": ["h100.json", "h200.json"]}
    assert names(H200._replace(sm_count=114)) == {"user": [], "device": [], "same_arch": []}


def test_empty_tiers_say_why(shipped: Path) -> None:
    """A tier without tables has a reason for it."""
    assert [tier.left_out for tier in tiers_for(H200, ())] == [
        ("no table of the user's own",),
        ("no shipped table is for NVIDIA H200 (sm_90, 132 SMs)",),
        ("no shipped table is for another device like NVIDIA H200 (sm_90, 132 SMs)",),
        ("no model is for NVIDIA H200 (sm_90, 132 SMs)",),
    ]


def test_only_allowed_tiers_are_opened(shipped: Path, table_file: Write, caplog: pytest.LogCaptureFixture) -> None:
    """A tier that the setting switches off has no tables and says so, and whatever is wrong with its files is quiet."""
    table_file("tables/nvidia-h200.json", ATEN)
    table_file("tables/h100.json", BAD, hardware=H100._asdict())
    (shipped / "broken.mlp.safetensors").touch()
    user, device, same_arch, model = tiers_for(H200, (str(table_file("mine.json", BAD)),), ("device",))
    assert [table.path for table in device.sources] == [shipped / "nvidia-h200.json"]
    for tier in (user, same_arch, model):
        assert tier == (tier.name, (), ("switched off by the setting tiers",))
    assert caplog.messages == []


def test_users_table_for_other_hardware(shipped: Path, table_file: Write, caplog: pytest.LogCaptureFixture) -> None:
    """It is left out, and the reason says why; the user's other tables keep their order."""
    other = table_file("other.json", ATEN, hardware=A100)
    first, last = table_file("z.json", ATEN), table_file("a.json", ATEN, hardware=H100._asdict())
    mine = [str(first), str(other), str(last)]
    tier, *_ = tiers_for(H200, mine)
    assert [table.path for table in tier.sources] == [first, last]
    difference = "the architecture is sm_90, not sm_80, and it has 132 SMs, not 108"
    reason = f"{other}: hardware: it is for NVIDIA A100-SXM4-80GB (sm_80, 108 SMs), not for {H200}: {difference}"
    assert tier.left_out == (f"left out: {reason}",)
    assert caplog.messages == []


def test_a_table_for_no_device_here(table_file: Write, caplog: pytest.LogCaptureFixture) -> None:
    """A user's table that no device of the machine can use is named in one warning; one for some device is not."""
    a100, mine = table_file("a100.json", ATEN, hardware=A100), table_file("mine.json", ATEN)
    cpu = Hardware("A CPU", "cpu-avx2", 8)
    for _ in range(2):
        warn_of_useless((str(a100), str(mine)), (cpu, H200))
    useless = f"{a100}: is for NVIDIA A100-SXM4-80GB (sm_80, 108 SMs), so it is of no use on {cpu}, {H200}"
    assert caplog.messages == [f"{useless}: the architecture is sm_90, not sm_80, and it has 132 SMs, not 108"]


def test_missing_and_bad_files_never_raise(shipped: Path, table_file: Write, caplog: pytest.LogCaptureFixture) -> None:
    """A file that is missing or no table costs itself and one warning, wherever it is met."""
    (shipped / "broken.json").write_text("{")
    good = table_file("good.json", ATEN)
    missing = str(good.parent / "missing.json")
    for _ in range(2):
        assert names(H200, missing, str(good)) == {"user": ["good.json"], "device": [], "same_arch": []}
        assert [file.name for file in find_tables([missing, str(good)])] == ["good"]
    assert sorted(message.partition("json:")[0] for message in caplog.messages) == [
        f"table left out: {missing.removesuffix('json')}",
        f"table left out: {shipped / 'broken.'}",
    ]


@pytest.mark.parametrize("name", ["other.json", "other.mlp.safetensors"])
@pytest.mark.parametrize("kind", ["directory", "pipe"])
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_what_is_no_file_among_the_shipped_ones(
    kind: str, name: str, shipped: Path, table_file: Write, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory or a pipe that is named like a table or a model costs itself and one warning, and is not read."""
    path = shipped / name
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    what = "is no regular file" if kind == "pipe" else "is a directory"
    table_file("tables/nvidia-h200.json", ATEN)
    for _ in range(2):
        assert [file.name for file in find_tables(())] == ["nvidia-h200"]
        assert names(H200)["device"] == ["nvidia-h200.json"]
        with pytest.raises(TableError, match=what):
            find_path(str(path))
        with pytest.raises(TableError, match=r"h300: no such file, .* \(shipped: nvidia-h200\)"):
            find_path("h300")
    assert caplog.messages == [f"{left_out(path)}: {what}"]


@pytest.mark.parametrize("name", ["other.json", "other.mlp.safetensors"])
def test_a_shipped_file_that_vanishes(
    name: str, shipped: Path, table_file: Write, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that somebody removes after it was seen in the directory costs itself and one warning."""
    path = shipped / name
    path.touch()
    table_file("tables/nvidia-h200.json", ATEN)
    monkeypatch.setattr(catalog, "distrust", lambda seen: seen.unlink() if seen == path else None)
    assert [file.name for file in find_tables(())] == ["nvidia-h200"]
    assert caplog.messages == [f"{left_out(path)}: no such file"]


@pytest.mark.usefixtures("nobody_writes")
def test_bad_models_are_said_to_be_models(shipped: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is wrong with what is named like a model, there is one warning, and it calls it a model."""
    directory, empty = tmp_path / "mine.safetensors", shipped / "nvidia-h200.mlp.safetensors"
    directory.mkdir()
    empty.touch()
    missing = tmp_path / "missing.safetensors"
    mine = [str(directory), str(missing)]
    for _ in range(2):
        assert find_tables(mine) == []
        *_, tier = tiers_for(H200, mine)
        assert tier.left_out[0] == f"left out: {directory}: is a directory"
    beginnings = [
        f"{left_out(directory)}: is a directory",
        f"{left_out(missing)}: no such file",
        f"{left_out(empty)}: not a safetensors file",
    ]
    assert [message for message in caplog.messages if not message.startswith(tuple(beginnings))] == []
    assert len(caplog.messages) == len(beginnings)


def test_bad_rows_are_named_once(shipped: Path, table_file: Write, caplog: pytest.LogCaptureFixture) -> None:
    """A bad row costs that row, and one warning with file, line and JSON path."""
    path = table_file("mine.json", ATEN, BAD)
    for _ in range(2):
        assert len(open_table(path).entries) == 1
    (message,) = caplog.messages
    assert message.startswith(f"row skipped: {path}:")
    assert ": entries[1].configs[0].template: " in message


def test_many_bad_rows_are_summed_up(shipped: Path, table_file: Write, caplog: pytest.LogCaptureFixture) -> None:
    """Of very many bad rows the first are named, and the rest is counted."""
    path = table_file("mine.json", *[BAD] * 25)
    with caplog.at_level(logging.WARNING):
        open_table(path)
    assert len(caplog.messages) == 11
    assert "15 more rows skipped" in caplog.messages[-1]


def test_opening_a_bad_file_raises(table_file: Write) -> None:
    """Who asks for a table by hand gets the error."""
    with pytest.raises(TableError, match="schema_version: expected 2, found 3"):
        open_table(table_file("mine.json", schema_version=3))


def test_a_link_that_leads_nowhere_is_called_one(tmp_path: Path) -> None:
    """The message does not deny that there is something of that name."""
    (tmp_path / "one.json").symlink_to("one.json")
    with pytest.raises(TableError, match="is a symbolic link that leads to no file"):
        find_path(str(tmp_path / "one.json"))


def test_the_user_s_directory_of_tables_is_found(
    shipped: Path, table_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables for this device answer in the tier ``user``, behind those that are named."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert find_tables(()) == []
    (tmp_path / "config" / "diode_lut").mkdir(parents=True)
    own = table_file("config/diode_lut/tables/own.json", ATEN)
    table_file("config/diode_lut/tables/like.json", ATEN, hardware={"name": "X", "arch": "sm_90", "sm_count": 132})
    named = table_file("named.json", ATEN)
    assert names(H200, str(named))["user"] == ["named.json", "own.json"]
    assert [(file.name, file.shipped, file.named) for file in find_tables([str(named)])] == [
        ("named", False, True),
        ("like", False, False),
        ("own", False, False),
    ]
    before = Sources(H200, tiers_for(H200, ())).digest
    own.unlink()
    assert Sources(H200, tiers_for(H200, ())).digest != before


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Path.mkdir, "is a directory"),
        (getattr(os, "mkfifo", None), "is no regular file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (lambda path: path.symlink_to("missing"), "cannot be read: No such file or directory"),
        (lambda path: path.write_bytes(b'{"note": "\xe9"}'), ":1:11: byte 0xe9 is not UTF-8"),
    ],
    ids=["directory", "pipe", "loop", "dangling", "latin-1"],
)
@pytest.mark.skipif(os.name != "posix", reason="names of files and pipes are others")
@pytest.mark.usefixtures("nobody_writes")
def test_a_bad_file_in_the_user_s_directory_costs_itself(
    make: Callable[[Path], object],
    reason: str,
    shipped: Path,
    table_file: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever is called like a table there is one warning, and the others answer."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "diode_lut").mkdir(parents=True)
    good = table_file("config/diode_lut/tables/good.json", ATEN)
    bad = good.with_name("caf\udce9.json")  # a name that is not UTF-8
    make(bad)
    for _ in range(2):
        assert [file.path for file in find_tables(())] == [good]
        assert names(H200)["user"] == ["good.json"]
        with pytest.raises(TableError, match=r"h300: no such file, .* your own: good\)"):
            find_path("h300")
    (message,) = caplog.messages
    assert message.startswith(printable(f"table left out: {bad}"))
    assert reason in message


def test_a_directory_that_cannot_be_listed_costs_itself(
    shipped: Path, table_file: Write, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The user's directory of tables that the system refuses is one warning, and tables that are named answer."""
    monkeypatch.setenv("XDG_CONFIG_HOME", f"/{'x' * 300}")
    for _ in range(2):
        assert names(H200, str(table_file("good.json", ATEN)))["user"] == ["good.json"]
    (message,) = caplog.messages
    assert message == f"tables left out: {own_tables_directory()}: cannot be read: File name too long"


def test_a_table_of_this_cpu_with_other_threads_is_named(
    shipped: Path, table_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of tables in the user's directory, one for another number of threads is a warning, unless another one fits."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "diode_lut").mkdir(parents=True)
    of_cpu = {"name": "A CPU", "arch": "cpu-avx2", "sm_count": 8}
    path = table_file("config/diode_lut/tables/eight.json", ATEN, hardware=of_cpu)
    table_file("config/diode_lut/tables/other.json", ATEN, hardware={**of_cpu, "name": "B"})
    two = Hardware("A CPU", "cpu-avx2", 2)
    tier, *_ = tiers_for(two, ())
    (reason,) = tier.left_out
    assert reason.startswith(f"left out: {path}: is for A CPU (cpu-avx2, 8 threads): PyTorch has 2 threads, not 8")
    assert caplog.messages == [f"table {reason}"]
    table_file("config/diode_lut/tables/two.json", ATEN, hardware={**of_cpu, "sm_count": 2})
    assert tiers_for(two, ())[0].left_out == ()
    assert tiers_for(H200, ())[0].left_out == ("no table of the user's own",)


def test_the_user_s_directory_is_below_home(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ``~/.config/diode_lut/tables`` unless ``XDG_CONFIG_HOME`` is an absolute path."""
    monkeypatch.setenv("HOME", "/home/someone")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert own_tables_directory() == Path("/home/someone/.config/diode_lut/tables")


def test_a_table_in_the_user_s_directory_that_others_can_write_is_left_out(
    shipped: Path, table_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The user has not named it, so nobody else may have written it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "diode_lut").mkdir(parents=True)
    path = table_file("config/diode_lut/tables/own.json", ATEN)
    path.chmod(0o666)
    assert names(H200)["user"] == []
    assert f"{path} can be written by others" in caplog.text
    assert f"{path} can be written by others (chmod go-w)" in distrusted()
