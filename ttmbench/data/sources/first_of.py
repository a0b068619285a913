"""Several places for the same data: the first one that is at hand is read, and recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ttmbench._util.third_party_errors import describe
from ttmbench.data.availability import DataLocation
from ttmbench.data.cells import Where
from ttmbench.data.paths import read_options
from ttmbench.data.task_file import Crop, Tags
from ttmbench.errors import OutOfReachError, UsageError
from ttmbench.types import Loaded, SourceRequest


class FirstOfOptions(BaseModel):
    """Options of ``kind: first_of``: sources in the order in which they are tried."""

    model_config = ConfigDict(extra="forbid")
    of: list[dict[str, object]] = Field(min_length=1)


class Columns(BaseModel):
    """Columns of one of several sources, where they are not those of ``group:``."""

    model_config = ConfigDict(extra="forbid")
    id: str | None = None
    images: str | list[str] | None = None
    captions: str | list[str] | None = None
    label: str | None = None
    tags: Tags | None = None
    crop: Crop | None = None
    where: Where | None = None
    first_rows: int | None = Field(None, ge=1)


def read_first_of(request: SourceRequest) -> Loaded:
    """The first of several sources that is at hand; ``passed_over`` in its record names what was tried before.

    ``of`` lists the sources as task files write them, each with columns of its own if it needs them. OutOfReachError
    says for each why it is not at hand; DataError if the one that is at hand is wrong.
    """
    return first_available(read_options(FirstOfOptions, request).of, request)


def first_available(sources: Sequence[Mapping[str, object]], request: SourceRequest) -> Loaded:
    """Reads sources in their order until one is at hand; arguments and errors as for `read_first_of`."""
    reasons: list[str] = []
    passed: list[str] = []
    for source in sources:
        try:
            loaded = request.read(*_asked(source, request))
        except OutOfReachError as error:
            reasons.append(str(error))
            passed.append(f"{source['kind']} {source.get('file') or source.get('path') or ''}".strip())
            continue
        return Loaded(loaded.groups, {**loaded.source, **({"passed_over": passed} if passed else {})})
    if len(reasons) == 1:
        raise OutOfReachError(reasons[0])
    listed = "; ".join(f"({number}) {reason}" for number, reason in enumerate(reasons, start=1))
    raise OutOfReachError(f"none of {len(reasons)} places has the data: {listed}")


def locations(request: SourceRequest) -> list[DataLocation]:
    """The places of several sources, one after the other."""
    return locations_of_all(read_options(FirstOfOptions, request).of, request)


def locations_of_all(sources: Sequence[Mapping[str, object]], request: SourceRequest) -> list[DataLocation]:
    """The places of several sources, one after the other."""
    return [location for source in sources for location in request.locations(*_asked(source, request))]


def _asked(source: Mapping[str, object], request: SourceRequest) -> tuple[Mapping[str, object], SourceRequest]:
    """One of several sources, and the request for it: ``columns`` may be its own; UsageError if they are none."""
    columns = source.get("columns")
    options = {key: value for key, value in source.items() if key != "columns"}
    if columns is None:
        return options, request
    try:
        if not isinstance(columns, Mapping):
            raise UsageError("source.of.columns: should be a mapping")
        stated = Columns.model_validate(columns).model_dump(exclude_none=True)
    except ValidationError as error:
        raise UsageError(f"source.of.columns: {describe(error, Columns)}") from None
    if "label" in stated:  # which stands in the place of the caption, as in every request
        stated["captions"] = [stated.pop("label")]
    return options, replace(request, columns={**request.columns, **stated})
