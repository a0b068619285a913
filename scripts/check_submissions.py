"""Checks the results that a checkout has and this one lacks: what a pull request proposes.

    python scripts/check_submissions.py FOLDER

FOLDER is another checkout, of which only files below results/submissions are read. Each document that is new or changed
there is validated with its metadata, and none may be a copy of another. Data that are not on this machine leave values
unchecked; a line says how many.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ttmbench.cli import main

HERE = Path(__file__).resolve().parents[1]
PLACE = Path("results") / "submissions"


def changed(proposed: Path, here: Path) -> list[Path]:
    """The documents of a folder that another lacks, or has with other content or other files beside them."""
    folders = sorted({path.parent for path in proposed.rglob("*") if path.is_file() and _differs(path, proposed, here)})
    return sorted(path for folder in folders for path in folder.glob("*.json"))


def _differs(path: Path, proposed: Path, here: Path) -> bool:
    other = here / path.relative_to(proposed)
    return not other.is_file() or other.read_bytes() != path.read_bytes()


def check(proposed: Path, here: Path = HERE) -> int:
    """Exit code: that of `ttmbench validate` for what is new, then for everything together."""
    folder = proposed / PLACE
    documents = changed(folder, here / PLACE)
    if not documents:
        print("no document is new or changed")
        return 0
    print(f"{len(documents)} documents are new or changed, or have other files beside them")
    worst = main(["validate", *map(str, documents), "--with_metadata", "--allow_unchecked"])
    return max(worst, main(["validate", str(folder), "--allow_unchecked", "--schema_only"]))


if __name__ == "__main__":
    sys.exit(check(Path(sys.argv[1])))
