"""Other names for what lies in the data folder: those of other people's code, and of archives unpacked by hand.

A source lists them under ``also``: a path of its own layout -> folders of the data folder that may stand in its place.
The path itself is looked for first. Nothing of this is needed where the documented layout is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from ttmbench.data.loading import below

Also = dict[str, tuple[str, ...]]


def names_of(path: str, also: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A path, and what may stand in its place, in the order in which they are looked for.

    >>> list(names_of("whatsup/a.json", {"whatsup": ["whatsup_a_raw", "."]}))
    ['whatsup/a.json', 'whatsup_a_raw/a.json', 'a.json']
    >>> list(names_of("whatsup_b/a.json", {"whatsup": ["."]}))
    ['whatsup_b/a.json']
    """
    yield path
    for name, others in also.items():
        if path == name or path.startswith(f"{name}/"):
            rest = path[len(name) + 1 :]
            for other in others:
                yield (PurePosixPath(other) / rest).as_posix()


def find(base: Path, path: str, also: Mapping[str, Sequence[str]], inner: Sequence[str] = ()) -> str:
    """Where a path of the documented layout really lies.

    Args:
        base: the data folder.
        path: below it.
        also: other names.
        inner: what has to be in it, from there.

    Returns:
        The first of its names that is there with all of that; the path itself if none is.

    Raises:
        UsageError: a name leaves the data folder.
    """
    for name in names_of(path, also):
        place = below(base, name, "source")
        if place.exists() and all((place / one).exists() for one in inner):
            return name
    return path
