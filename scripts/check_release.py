"""Check that the checkout is the release that a tag names.

python scripts/check_release.py v0.1.0
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import contract
import set_repository

ROOT = Path(__file__).resolve().parents[1]
# File -> where the version stands in it.
PLACES = {
    "pyproject.toml": r'^version = "([^"]+)"$',
    "ttmbench/_version.py": r'^__version__ = "([^"]+)"$',
    "CITATION.cff": r"^version: (\S+)$",
    "README.md": r"^  version = \{\{?([^}]+)\}",
}


def versions(root: Path) -> dict[str, str]:
    """The version as each file states it; empty where none is found."""
    values = {}
    for file, pattern in PLACES.items():
        match = re.search(pattern, (root / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
        values[file] = match[1] if match else ""
    return values


def problems(root: Path, tag: str) -> list[str]:
    """What keeps a checkout from being the release of a tag, a sentence each."""
    errors = [
        f"{file} states version {version or 'none'}, the tag is {tag}"
        for file, version in versions(root).items()
        if tag != f"v{version}"
    ]
    if ".dev" in tag:
        errors.append(f"{tag} is a development version; a release has none of its suffix .dev")
    errors += set_repository.problems(root)
    log = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = next(iter(re.findall(r"^## (.*)$", log, flags=re.MULTILINE)), "nothing")
    if not re.fullmatch(rf"{re.escape(tag.removeprefix('v'))} \(\d{{4}}-\d\d-\d\d\)", newest):
        errors.append(f"CHANGELOG.md begins with '{newest}', not with '{tag.removeprefix('v')} (year-month-day)'")
    if contract.found() != contract.read():
        errors.append("tests/project/contract.json is not what is there now; run `python scripts/contract.py write`")
    return errors


def main() -> None:
    """Exits with what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag", help="v and the version")
    errors = problems(ROOT, parser.parse_args().tag)
    if errors:
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    main()
