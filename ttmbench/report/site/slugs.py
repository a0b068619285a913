"""Where things of a site lie: a file name for every task, model and document, none twice, all plain."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from ttmbench._util.files import safe_name


def file_names(names: Iterable[str], ending: str) -> dict[str, str]:
    """A file name for each name.

    Args:
        names: of tasks, models or documents; a document's has folders.
        ending: of the files.

    Returns:
        Name -> file, told apart where only their case or unusual characters differ.

    >>> file_names(["a/b", "A/B", "a__b"], ".html")
    {'a/b': 'a__b.html', 'A/B': 'A__B-2.html', 'a__b': 'a__b-3.html'}
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        stem = safe_name(str(PurePosixPath(name).with_suffix("")) if ending == ".json" else name)
        file, number = f"{stem}{ending}", 1
        while file.lower() in taken:  # many file systems do not tell cases apart
            number += 1
            file = f"{stem}-{number}{ending}"
        taken.add(file.lower())
        found[name] = file
    return found
