"""Rows of a task made from a file of its owner that is not read as it is: lists in a pickle of torch."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ttmbench._util.console import one_line
from ttmbench._util.files import file_digest, write_text
from ttmbench.data.download import DataFile
from ttmbench.data.paths import below
from ttmbench.data.rows import Row
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
    rows: int = Field(ge=1)
    last: int | None = Field(None, ge=1)


@dataclass(frozen=True)
class PreparedFile(DataFile):
    """A file of rows, as JSON lines with their number in the original as ``row``, made of an original put beside it."""

    how: Preparation = field(kw_only=True)

    def fetch(self) -> str:
        """Writes the rows.

        Raises:
            OutOfReachError: the original is not there, or images in the user's own folder are missing.
            DataError: it holds anything but plain values and tensors, or not the lists that are named.
        """
        how, original = self.how, below(self.data_dir, self.how.file, "source.prepare.file")
        if self.target.exists():
            return super().fetch()
        if not original.is_file():
            raise OutOfReachError(
                f"{self.name} is made of {how.file}, which is not in the data folder {self.data_dir}; put it there"
                f" (from {self.origin}), and download again"
            )
        lists, lines = _read_lists(original, how), []
        for number in range(max(0, how.rows - (how.last or how.rows)), how.rows):
            row = Row(str(number), {name: items[number] for name, items in lists.items()}, number, str(original))
            cells: dict[str, object] = {"row": number}
            for name, path in how.cells.items():
                value = row.cell(path)
                if not isinstance(value, str):
                    raise DataError(f"{row.named(path)} must be a text, got {value!r:.80}")
                cells[name] = value.translate(dict.fromkeys(map(ord, how.without.get(name, ""))))
            lines.append(json.dumps(cells, ensure_ascii=False) + "\n")
        with self.writing():
            write_text(self.target, "".join(lines))
        return f"{len(lines)} of {how.rows} rows of {how.file} (sha256 {file_digest(original)})"


def _read_lists(path: Path, how: Preparation) -> dict[str, list[object]]:
    """The named lists of a mapping; a pickle that would do more than build plain values and tensors is refused."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        asked = re.search(r"GLOBAL (\S+)", str(error))
        why = f"it holds {one_line(asked[1], 80)}" if asked else "it is damaged or holds objects of other kinds"
        raise DataError(f"{path}: {why}, and only plain values and tensors are read from a pickle") from error
    content = content if isinstance(content, dict) else {}
    sizes = {name: len(items) for name, items in content.items() if isinstance(items, list)}
    names = sorted({cell.partition(".")[0] for cell in how.cells.values()})
    if any(sizes.get(name) != how.rows for name in names):
        found = ", ".join(f"{name} {sizes.get(name, '')}" for name in content) or "none"
        raise DataError(f"{path}: must hold lists of {how.rows} rows named {', '.join(names)}; it has {found}")
    return {name: content[name] for name in names}
