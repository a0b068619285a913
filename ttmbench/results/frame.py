"""Numbers as a table of pandas, with a type for every column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from ttmbench.results.numbers import Number

if TYPE_CHECKING:
    import pandas as pd

_WHOLE = ("version", "seeds", "groups", "groups_of_task", "of_tasks", "cells")
_YES_OR_NO = ("published", "limited", "higher_is_better", "from_file")
_TEXT = (
    *("task", "metric", "filter", "method", "track", "model", "fingerprint", "data", "date", "file", "seen"),
    *("trained_on", "adapted_to", "disagrees"),
)


def to_frame(numbers: Iterable[Number]) -> pd.DataFrame:
    """Numbers as a table: a row a number, a column an attribute.

    Args:
        numbers: of one document or many.

    Returns:
        Rates as float64 (undefined is NaN), counts as Int64, names as text.
    """
    import pandas as pd

    columns = [column.name for column in fields(Number)]
    kinds = {name: "Int64" if name in _WHOLE else "bool" if name in _YES_OR_NO else "float64" for name in columns}
    frame = pd.DataFrame([asdict(one) for one in numbers], columns=columns, dtype=object)
    return frame.astype({name: kind for name, kind in kinds.items() if name not in _TEXT})
