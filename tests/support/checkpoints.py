"""Checkpoints as other versions of numpy wrote them, and such as would run a program."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path


class Program:
    """Leaves a file behind if it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.trace), "w"))


def rename_global(path: Path, before: str, after: str) -> None:
    """Renames a module in the pickle of a checkpoint, of either of torch's formats."""
    if not zipfile.is_zipfile(path):
        path.write_bytes(path.read_bytes().replace(before.encode(), after.encode()))
        return
    content = io.BytesIO()
    with zipfile.ZipFile(path) as read, zipfile.ZipFile(content, "w") as written:
        for item in read.infolist():
            data = read.read(item)
            written.writestr(item.filename, data.replace(before.encode(), after.encode()))
    assert content.getvalue() != path.read_bytes()
    path.write_bytes(content.getvalue())
