"""Whether a parquet file holds what its size lets one expect, before a library unpacks it to the disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ttmbench._util.limits import limit, raised_by
from ttmbench.errors import DataError

_ROWS = 16  # decoded at a time


def check_decoded(files: Iterable[Path]) -> None:
    """DataError if parquet files unpack to more than ``table_ratio`` times their size and ``table_bytes``.

    A value that a column repeats is stored once, so a file of some hundred kB may hold gigabytes. What a column could
    unpack to at most is in its header; only columns that could be too large are read, some rows at a time. What is no
    parquet file is for its reader to say.
    """
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    for path in files:
        most = max(limit("table_bytes"), limit("table_ratio") * path.stat().st_size)
        try:
            with parquet.ParquetFile(path) as table:
                suspects = _suspects(table.metadata, most)
                total = 0
                for batch in table.iter_batches(_ROWS, columns=suspects) if suspects else ():
                    total += sum(map(_decoded_bytes, batch.columns))
                    if total > most:
                        raise DataError(
                            f"{path} has {path.stat().st_size} bytes and unpacks to more than {most}; "
                            f"{raised_by('table_bytes')}"
                        )
        except (ArrowException, OSError):  # damaged: the library that reads it says so
            continue


def _suspects(metadata: Any, most: int) -> list[str]:
    """Columns that may unpack to more than that."""
    bounds: dict[str, int] = {}
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        for chunk in (group.column(number) for number in range(group.num_columns)):
            name = chunk.path_in_schema.split(".", 1)[0]
            fixed = chunk.physical_type not in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
            widest = 16 if fixed else chunk.total_uncompressed_size  # a value is no wider than all pages of its chunk
            bounds[name] = bounds.get(name, 0) + chunk.num_values * widest
    return [name for name, bound in bounds.items() if bound > most]


def _decoded_bytes(column: Any) -> int:
    """Bytes of a column once every value stands by itself."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        return int(column.dictionary_decode().nbytes)
    if types.is_struct(column.type):
        return sum(_decoded_bytes(column.field(number)) for number in range(column.type.num_fields))
    return _decoded_bytes(column.flatten()) if types.is_list(column.type) else int(column.nbytes)
