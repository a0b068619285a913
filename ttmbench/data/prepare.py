"""Rows of a task made from a file of its owner that is not read as it is: lists in a pickle of torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ttmbench._util.console import one_line
from ttmbench._util.files import file_digest, write_atomically
from ttmbench.data.cells import Row
from ttmbench.data.download.files import DataFile
from ttmbench.data.download.http import Web
from ttmbench.data.paths import below
from ttmbench.errors import DataError, OutOfReachError


class Preparation(BaseModel):
    """How the rows of a source are made: ``prepare`` of its options.

    Attributes:
        file: below the data folder: what ``torch.save`` wrote of a mapping of lists, all as long as there are rows.
        cells: name of a cell -> list, and what leads into its items, as in ``annotations.json.caption``.
        without: name of a cell -> characters that are removed from it.
        rows: how many rows the lists have to have.
        last: only so many rows at the end are written; all without it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    cells: dict[str, str] = Field(min_length=1)
    without: dict[str, str] = {}
    rows: int | None = Field(None, ge=1)
    last: int | None = Field(None, ge=1)


@dataclass(frozen=True)
class PreparedFile(DataFile):
    """A file of rows, as JSON lines with their number in the original as ``row``, made of an original put beside it."""

    how: Preparation = field(kw_only=True)

    def fetch(self, web: Web) -> str:
        """Writes the rows.

        Raises:
            OutOfReachError: the original is not there, or images in the user's own folder are missing.
            DataError: it holds anything but plain values and tensors, or not the lists that are named.
        """
        if self.target.exists():
            return super().fetch(web)
        original = below(self.data_dir, self.how.file, "source.prepare.file")
        if not original.is_file():
            raise OutOfReachError(
                f"{self.name} is made of {self.how.file}, which is not in the data folder {self.data_dir}; put it there"
                f" (from {self.origin}), and download again"
            )
        with self.writing(self.target.parent):
            return _write_rows(original, self.target, self.how)


def _write_rows(original: Path, target: Path, how: Preparation) -> str:
    lists = _read_lists(original, {path.partition(".")[0] for path in how.cells.values()})
    lengths = {name: len(items) for name, items in lists.items()}
    total = next(iter(lengths.values()))
    if set(lengths.values()) != {how.rows or total}:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"{original}: lists of {how.rows or 'one number of'} rows are needed, got {found}")
    first = max(0, total - (how.last or total))
    lines = [json.dumps(row, ensure_ascii=False) for row in _rows(lists, first, total, how, str(original))]
    write_atomically(target, lambda path: path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8"))
    return f"{len(lines)} of {total} rows of {how.file} (sha256 {file_digest(original)})"


def _rows(
    lists: Mapping[str, list[object]], first: int, total: int, how: Preparation, where: str
) -> Iterator[dict[str, object]]:
    for number in range(first, total):
        row = Row(str(number), {name: items[number] for name, items in lists.items()}, number, where)
        cells: dict[str, object] = {"row": number}
        for name, path in how.cells.items():
            value = row.cell(path)
            if not isinstance(value, str):
                raise DataError(f"{row.named(path)} must be a text, got {value!r:.80}")
            cells[name] = value.translate(dict.fromkeys(map(ord, how.without.get(name, ""))))
        yield cells


def _read_lists(path: Path, names: set[str]) -> dict[str, list[object]]:
    """The named lists of a mapping; a pickle that would do more than build plain values and tensors is refused."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        asked = re.search(r"GLOBAL (\S+)", str(error))
        why = f"it holds {one_line(asked[1], 80)}" if asked else "it is damaged or holds objects of other kinds"
        raise DataError(f"{path}: {why}, and only plain values and tensors are read from a pickle") from error
    absent = sorted(names - content.keys()) if isinstance(content, dict) else sorted(names)
    wrong = [name for name in sorted(names - {*absent}) if not isinstance(content[name], list) or not content[name]]
    if absent or wrong:
        known = ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise DataError(f"{path}: must hold lists named {', '.join(sorted(names))}; it has {known}")
    return {name: content[name] for name in sorted(names)}
