"""Checkpoints as other versions of numpy wrote them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path


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
