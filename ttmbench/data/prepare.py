"""Rows of a task made from a file of its owner that is not read as it is: lists in a pickle of torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ttmbench._util.console import one_line
from ttmbench._util.files import file_digest, write_atomically
from ttmbench.data.cells import Row
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


def prepare_rows(data_dir: Path, made: str, how: Preparation, origin: str = "") -> str:
    """Writes a file of rows as JSON lines, each with its number in the original as ``row``; returns what was done.

    Nothing is done where the file exists. ``origin``: where a human gets the original.

    Raises:
        OutOfReachError: the original is not there.
        DataError: it holds anything but plain values and tensors, or not the lists that are named.
    """
    target, original = below(data_dir, made, "source.file"), below(data_dir, how.file, "source.prepare.file")
    if target.exists():
        return f"{made} already exists; remove it to write it again"
    if not original.is_file():
        where = f"; get it from {origin}" if origin else ""
        raise OutOfReachError(f"{how.file} is not in the data folder {data_dir}, and {made} is made of it{where}")
    lists = _read_lists(original, {path.partition(".")[0] for path in how.cells.values()})
    lengths = {name: len(items) for name, items in lists.items()}
    total = next(iter(lengths.values()))
    if set(lengths.values()) != {how.rows or total}:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"{original}: lists of {how.rows or 'one number of'} rows are needed, got {found}")
    first = max(0, total - (how.last or total))
    lines = [json.dumps(row, ensure_ascii=False) for row in _rows(lists, first, total, how, str(original))]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, lambda path: path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8"))
    return f"{made} has {len(lines)} of {total} rows of {how.file} (sha256 {file_digest(original)})"


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
