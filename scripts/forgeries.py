"""Forges every field of sound submissions, one at a time, and prints the forgeries that ``ttmbench validate`` accepts.

    python scripts/forgeries.py results/submissions/*/results_*.json
    python scripts/forgeries.py --all RESULT.json ...

The fields are those of the schema, so a new one is forged without a change here. Of each field the first place in the
documents is changed, with ``--all`` every place: to another value, another type, none, twice as much, with a key more
or less, and so on. A free field may take any bounded value, a recorded one any that is possible; whatever else is
accepted ends in exit code 1.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttmbench.cli.validate import read_command
from ttmbench.errors import TtmbenchError
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.reproduce.submission.check import check_submission
from ttmbench.results.document import ResultsDocument
from ttmbench.results.records import FREE, RECOMPUTED, RECORDED, Check, Part

Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Field:
    """A place of a document that holds the value of a field.

    Attributes:
        name: the field, with its class: ``Iteration.threshold``.
        place: keys and positions.
        check: how it is checked.
    """

    name: str
    place: Place
    check: Check


def fields_of(document: ResultsDocument) -> Iterator[Field]:
    """Every place of a document that holds a field's value; those of fields that consist of parts come too."""
    yield from _fields(document, ())


def _fields(part: Part, path: Place) -> Iterator[Field]:
    for name in sorted(part.model_fields_set & type(part).model_fields.keys()):
        about = type(part).model_fields[name]
        check = next(entry for entry in about.metadata if isinstance(entry, Check))
        here = (*path, about.alias or name)
        yield Field(f"{type(part).__name__}.{name}", here, check)
        yield from _inside(getattr(part, name), here)


def _inside(value: object, path: Place) -> Iterator[Field]:
    if isinstance(value, Part):
        yield from _fields(value, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _inside(item, (*path, key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _inside(item, (*path, at))


def impossible(value: object) -> Iterator[tuple[str, object]]:
    """Values that no field takes: of another type, out of range, with what no page should show."""
    yield "another type", 7 if isinstance(value, str | dict | list) or value is None else [value]
    if isinstance(value, bool):
        yield "number for truth", int(value)
    elif isinstance(value, int | float):
        yield "text for number", str(value)
        yield "truth for number", True
        yield "huge", 10**40
        yield "far below", -(10**6) - 0.5
    if isinstance(value, str):
        yield "turned text", f"{value}\u202e"
        yield "control character", f"{value}\x1b[2J"
        yield "endless", value + "x" * 300_000
    if isinstance(value, dict):
        yield "hidden key", {**value, "\u2066": 1}
        yield "endless", {**value, **{f"x{number}": "y" * 50 for number in range(5_000)}}


def other(value: object) -> Iterator[tuple[str, object]]:
    """Values that the field could have, and has not."""
    if isinstance(value, bool):
        yield "the opposite", not value
    elif isinstance(value, int):
        yield from (
            ("one more", value + 1),
            ("one less", value - 1),
            ("a fraction", value + 0.0),
            ("negative", -value - 3),
        )
    elif isinstance(value, float):
        yield from (("more", value * 1.01 + 0.001), ("less", value * 0.99 - 0.001), ("a little more", value + 1e-9))
        if value == 0:
            yield "negative zero", -0.0
    elif isinstance(value, str):
        yield from (("longer", f"{value}x"), ("empty", ""), ("upper case", f"{value.upper()} "))
        if "a" in value:
            yield "look-alike", value.replace("a", "\u0430", 1)
    elif value is None:
        yield from (("a number", 0.5), ("a text", "x"))
    elif isinstance(value, list):
        yield "empty", []
        yield "once more", [*value, *(value[-1:] or [0])]
        if len(value) > 1 and value[0] != value[-1]:
            yield "reversed", value[::-1]
        yield from _of_entry(value, 0)
    elif isinstance(value, dict):
        yield "an entry more", {**value, "x": next(iter(value.values()), "x")}
        if value:
            yield "an entry less", dict(list(value.items())[1:])
            yield from _of_entry(value, next(iter(value)))
    yield "gone", ...


def _of_entry(value: object, key: object) -> Iterator[tuple[str, object]]:
    """The first entry of a list or mapping is another."""
    if len(value) and not isinstance(value[key], dict | list):
        for words, entry in other(value[key]):
            changed = copy.copy(value)
            if entry is not ...:
                changed[key] = entry
                yield f"first entry {words}", changed


def forged(document: dict, field: Field, value: object) -> dict:
    """A document with another value at a place, ``...`` takes it out; all else is shared with the one given."""
    made: Any = copy.copy(document)
    here = made
    for key in field.place[:-1]:
        here[key] = copy.copy(here[key])
        here = here[key]
    if value is ...:
        del here[field.place[-1]]
    else:
        here[field.place[-1]] = value
    return made


def is_refused(path: Path, registry: Registry) -> bool:
    """Whether a submission is refused, or cannot be read as a results document."""
    try:
        return bool(check_submission(path, registry, read_command).found)
    except TtmbenchError:
        return True


def forgeries(document: dict, field: Field) -> Iterator[tuple[str, dict, bool]]:
    """What is forged, the document, and whether it has to be refused."""
    value: object = document
    for key in field.place:
        value = value[key]
    for words, changed in impossible(value):
        yield words, forged(document, field, changed), True
    for words, changed in other(value):
        yield words, forged(document, field, changed), field.check == RECOMPUTED


def copied(path: Path, folder: Path) -> Path:
    """A submission with all its files in another folder."""
    shutil.copytree(path.parent, folder, dirs_exist_ok=True)
    return folder / path.name


def accepted(paths: Sequence[Path], registry: Registry, every: bool, tell: Callable[[str], object]) -> list[str]:
    """The forgeries that should have been refused, a line each."""
    lines, seen, counts = [], set[str](), {RECOMPUTED: 0, RECORDED: 0, FREE: 0}
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            here = copied(path, Path(folder) / "x")
            document = json.loads(here.read_text(encoding="utf-8"))
            for field in fields_of(ResultsDocument.of(document)):
                if field.name in seen and not every:
                    continue
                seen.add(field.name)
                for words, made, has_to_be in forgeries(document, field):
                    if made == document and words not in ("negative zero", "a fraction"):
                        continue
                    here.write_text(json.dumps(made), encoding="utf-8")
                    counts[field.check] += 1
                    if has_to_be and not is_refused(here, registry):
                        lines.append(f"{path.name}: {'.'.join(map(str, field.place))}: {words}")
                        tell(f"accepted: {lines[-1]}")
    tell(", ".join(f"{count} forgeries of {check.kind} fields" for check, count in counts.items()))
    return lines


def main() -> int:
    """Prints what was accepted; 1 if that is anything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--all", action="store_true", help="every place of a field, not only the first")
    options = parser.parse_args()
    registry = build_registry()
    for path in options.results:
        if is_refused(path, registry):
            print(f"{path}: is refused as it is")
            return 1
    return 1 if accepted(options.results, registry, options.all, print) else 0


if __name__ == "__main__":
    sys.exit(main())
