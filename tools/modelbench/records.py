"""The file of results: a JSON object on each line, appended as soon as it is known, so that a run can be continued.

Records of the kind ``compile`` are of one cold compile, those of the kind ``run`` have the times of one model. A task
that failed has ``failed``, the reason.
"""

import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
_writing = threading.Lock()


def read(paths: Iterable[Path]) -> Iterator[Record]:
    """All records of these files; the last line may be incomplete."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def append(path: Path, record: Record) -> None:
    """Write one record at the end, from any thread."""
    with _writing, path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def key(record: Record) -> tuple[object, ...]:
    """What two records of the same measurement have in common."""
    label = record.get("label")
    name = label["name"] if isinstance(label, dict) else None
    return record["kind"], record["model"], name, record.get("repetition")
