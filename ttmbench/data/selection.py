"""Which rows of the data are read: those that meet conditions on their cells, and the first of each file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

from ttmbench.data.cells import Row, cell
from ttmbench.errors import DataError

Plain = StrictBool | StrictInt | StrictFloat | str


class Condition(BaseModel):
    """What a cell has to be for its row to be kept. All that is stated has to hold.

    Attributes:
        any_of: one of these values.
        none_of: none of these values.
        not_null: ``true``: there is a value.
        at_least: a number, not smaller than this.
        at_most: a number, not larger than this.
        differs_from: another column, whose value is another one.
        starts_with: a text that begins with this.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    any_of: list[Plain] | None = Field(None, min_length=1)
    none_of: list[Plain] | None = Field(None, min_length=1)
    not_null: bool = False
    at_least: float | None = None
    at_most: float | None = None
    differs_from: str | None = None
    starts_with: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _says_something(self) -> Condition:
        if self == type(self).model_construct():
            raise ValueError(f"a condition states one of: {', '.join(type(self).model_fields)}")
        return self

    def holds(self, row: Row, column: str, where: str) -> bool:
        """Whether a row is kept.

        Args:
            row: the row.
            column: whose cell is looked at.
            where: names the data, for messages.

        Returns:
            Whether the condition holds. Of nothing no comparison holds, but it is none of any values.

        Raises:
            DataError: there is no such column, or no number where one is compared.
        """
        value = cell(row, column, where)
        if value is None:
            positive = (self.any_of, self.at_least, self.at_most, self.starts_with)
            return not self.not_null and all(one is None for one in positive)
        if self.any_of is not None and not any(_same(value, one) for one in self.any_of):
            return False
        if self.none_of is not None and any(_same(value, one) for one in self.none_of):
            return False
        if self.differs_from is not None and value == cell(row, self.differs_from, where):
            return False
        if self.starts_with is not None and not str(value).startswith(self.starts_with):
            return False
        if self.at_least is not None and not _number(value, row, column, where) >= self.at_least:
            return False
        return self.at_most is None or _number(value, row, column, where) <= self.at_most


def _condition(value: Any) -> Any:
    """A value alone means that value; a list, one of its values."""
    if isinstance(value, Mapping | Condition):
        return value
    return {"any_of": value if isinstance(value, list) else [value]}


Where = dict[str, Annotated[Condition, BeforeValidator(_condition)]]
"""Column -> what its cell has to be."""


def kept_rows(rows: Iterable[Row], columns: Mapping[str, Any], where: str) -> Iterator[Row]:
    """The rows that a task reads.

    Args:
        rows: all of them, file by file.
        columns: with ``where`` (column -> condition) and ``first_rows`` (how many of each file), if there are any.
        where: names the data, for messages.

    Yields:
        Rows that meet all conditions, of each file no more than the first ones.

    Raises:
        DataError: a condition cannot be looked at; row and column are named.
    """
    conditions = {name: Condition.model_validate(_condition(one)) for name, one in (columns.get("where") or {}).items()}
    most = columns.get("first_rows")
    taken: dict[str, int] = {}
    for row in rows:
        if most is not None and taken.get(row.file, 0) >= most:
            continue
        if all(one.holds(row, name, where) for name, one in conditions.items()):
            taken[row.file] = taken.get(row.file, 0) + 1
            yield row


def _same(value: Any, wanted: Any) -> bool:
    """Equality; a text of a CSV file may be what a number looks like. True is no 1."""
    if isinstance(value, bool) != isinstance(wanted, bool) and not isinstance(value, str):
        return False
    return bool(value == wanted) or (isinstance(value, str) and not isinstance(wanted, str) and value == str(wanted))


def _number(value: Any, row: Row, column: str, where: str) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise DataError(f"{where}: '{column}' of row {row.index} is {value!r:.80}, not a number") from None
