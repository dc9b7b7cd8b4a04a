"""Pipes, devices and sockets where a file should be: no reader waits for them or reads them without end."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import diode_lut
from diode_lut.dataset import DatasetWriter, Header
from diode_lut.errors import DiodeLutError
from diode_lut.files import open_regular, write_atomically
from diode_lut.hardware import Hardware
from diode_lut.table import Table, to_bytes
from tests.commands import call

H200 = Hardware("NVIDIA H200", "sm_90", 132)
LONGEST_S = 60
COMMANDS = """
build {} -o out
build d.msgpack -o out --previous {}
build d.msgpack -o out --prune-with {}
check {}
check {}.safetensors
collect --problems {} --out timings --device cpu
collect --random 1 --out timings --device cpu --table {}
diff {} t.json
diff t.json {}
distill {} -o out.mlp.safetensors
evaluate {} d.msgpack
evaluate t.json {}
evaluate --model {} d.msgpack
explain mm 8 8 8 --hardware h200 --table {}
export inductor-table {} -o out
export timings {} -o out
fmt {}
import timings {} -o out
import autotune-log {} -o out --hardware X,sm_90,1
merge t.json t.json {} -o out
pack {} -o out
query {} hardware
receipt {}
report {} -o out
report t.json {} -o out
set {} mm --m 8 --config aten --note x
show {}
unset {} mm --m 8
""".strip().splitlines()

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in the file system"),
    pytest.mark.usefixtures("nobody_writes"),
]


@pytest.fixture(autouse=True)
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory with a table, a dataset and things that are no files; whatever waits is interrupted."""
    monkeypatch.chdir(tmp_path)
    write_atomically(Path("t.json"), to_bytes(Table(H200, [], {})))
    with DatasetWriter(Path("d.msgpack"), Header(H200)):
        pass
    for name in ("pipe", "pipe.safetensors"):
        os.mkfifo(name)
    Path("zero").symlink_to("/dev/zero")
    Path("zero.safetensors").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(LONGEST_S)
        yield
        signal.alarm(0)


def _late(*_: object) -> None:
    raise TimeoutError("somebody waits for a pipe, or reads a device without end")


@pytest.mark.parametrize("name", ["pipe", "zero"])
def test_commands_read_files_only(name: str) -> None:
    """Whatever a command is to read, what is no file is an error on one line that names it, and nothing is written."""
    for line in COMMANDS:
        result = call(*line.format(name).split())
        assert result.exit_code in (1, 2), line
        messages = [said for said in result.output.splitlines() if name in said]
        assert len(messages) == 1, (line, messages)
        assert "not a regular file: copy its contents into one" in messages[0], line
        written = {"out", "timings", "out.mlp.safetensors"} & set(os.listdir())  # noqa: PTH208 (names are what matters)
        assert not written, line


@pytest.mark.parametrize(("name", "says"), [("socket", "not a regular file"), (".", "directory"), ("gone", "No such")])
def test_other_things_are_not_opened(name: str, says: str) -> None:
    """Sockets, directories and what is not there are system errors that name them."""
    with pytest.raises(OSError, match=says) as error:
        open_regular(Path(name))
    assert Path(error.value.filename) == Path(name)


class Swapped(type(Path())):  # type: ignore[misc]
    """A file that becomes a pipe as soon as somebody has looked what it is."""

    def stat(self, **options: Any) -> os.stat_result:
        found: os.stat_result = super().stat(**options)
        self.unlink()
        os.mkfifo(self)
        return found


def test_a_file_that_becomes_a_pipe_is_no_file() -> None:
    """What is opened is looked at again: a reader does not wait for a pipe that replaces a file in between."""
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(Swapped("t.json"))


def test_registered_tables_are_files() -> None:
    """A pipe that is registered as a table is an error of ours at once."""
    with pytest.raises(DiodeLutError, match="pipe: is no regular file"):
        diode_lut.register_table("pipe")
