"""Writes the address of the public repository, and of the site, wherever files name them.

python scripts/set_repository.py https://github.com/OWNER/NAME --site https://OWNER.github.io/NAME

The addresses are in `project.urls` of pyproject.toml; CITATION.cff and the README's badges follow from them.
`check_release.py` refuses a release without them.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BADGES = re.compile(r"<!-- badges -->\n(?:\[!\[.*\n)*")
CITED = re.compile(r"^(?:repository-code|url): .*\n", flags=re.MULTILINE)
URLS = re.compile(r"\[project\.urls\]\n(?:.+\n)*\n")
LINK = re.compile(r'(?P<before>\]\(|(?:src|srcset|href)=")(?P<path>(?!https?:|#|mailto:)[^)"\s]+)')
IMAGES = (".png", ".svg", ".jpg")


def addresses(root: Path) -> dict[str, str]:
    """Name -> address, as pyproject.toml states them; empty before they are set."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return dict(project.get("urls", {}))


def texts(root: Path, urls: dict[str, str]) -> dict[str, str]:
    """File -> its text with the addresses; unchanged where it has them already."""
    repository, site = urls["Repository"], urls.get("Documentation")
    files = {
        name: (root / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "CITATION.cff", "README.md")
    }
    table = "[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items()) + "\n"
    without = URLS.sub("", files["pyproject.toml"])
    files["pyproject.toml"] = without.replace("[project.scripts]\n", f"{table}[project.scripts]\n", 1)
    cited = f"repository-code: {repository}\n" + (f"url: {site}\n" if site else "")
    start, end = CITED.sub("", files["CITATION.cff"].partition("references:\n")[0]), files["CITATION.cff"]
    files["CITATION.cff"] = start + cited + "".join(end.partition("references:\n")[1:])
    runs = {name: f"{repository}/actions/workflows/{name}.yml" for name in ("check", "docs")}
    lines = "".join(f"[![{name}]({run}/badge.svg)]({run})\n" for name, run in runs.items())
    files["README.md"] = BADGES.sub(f"<!-- badges -->\n{lines}", files["README.md"])
    return files


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """The README for a package page, where relative links lead nowhere.

    >>> with_absolute_links('[a](docs/a.md#b), src="docs/b.svg", [c](https://c)', "https://x/y", "v1.0")
    '[a](https://x/y/blob/v1.0/docs/a.md#b), src="https://x/y/raw/v1.0/docs/b.svg", [c](https://c)'
    """

    def absolute(match: re.Match[str]) -> str:
        kind = "raw" if match["path"].endswith(IMAGES) else "blob"
        return f"{match['before']}{repository}/{kind}/{tag}/{match['path']}"

    return LINK.sub(absolute, text)


def problems(root: Path) -> list[str]:
    """What is missing or differs, a sentence each."""
    urls = addresses(root)
    if "Repository" not in urls:
        return ["pyproject.toml names no repository; run `python scripts/set_repository.py URL`"]
    return [
        f"{name} does not have the addresses of pyproject.toml; run `python scripts/set_repository.py URL`"
        for name, text in texts(root, urls).items()
        if text != (root / name).read_text(encoding="utf-8")
    ]


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", help="https://host/owner/name")
    parser.add_argument("--site", help="where the documentation is published")
    options = parser.parse_args()
    if not re.fullmatch(r"https://[^/\s]+/[^/\s]+/[^/\s]+", options.repository):
        sys.exit(f"the repository must be https://host/owner/name, got {options.repository}")
    site = {"Documentation": options.site} if options.site else {}
    for name, text in texts(ROOT, {"Repository": options.repository, **site}).items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
