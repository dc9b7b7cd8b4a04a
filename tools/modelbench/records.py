"""The file of results: a JSON object on each line, appended as soon as it is known, so that a run can be continued.

Records of the kind ``compile`` are of one cold compile, those of the kind ``run`` have the times of one model. A task
that failed has ``failed``, the reason.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import zstandard

Record = dict[str, Any]


def read(paths: Iterable[Path]) -> Iterator[Record]:
    """All records of these files, which may be compressed; the last line may be incomplete."""
    for path in paths:
        data = path.read_bytes()
        for line in (zstandard.decompress(data) if path.suffix == ".zst" else data).splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)


def append(path: Path, record: Record) -> None:
    """Write one record at the end, in one call, so that threads and processes may do so at the same time."""
    with path.open("ab", buffering=0) as file:
        file.write(f"{json.dumps(record, default=str)}\n".encode())


def key(record: Record) -> tuple[object, ...]:
    """What two records of the same measurement have in common."""
    label = record.get("label")
    name = label["name"] if isinstance(label, dict) else None
    return record["kind"], record["model"], name, record.get("repetition")
