"""What mkdocs asks while it builds the site of mkdocs.yml: pages from other files, and links that fit the site.

One text has one place. The start page is README.md, pages of the project are the files of its root, the API comes from
docstrings, and options, arguments and keys of task files come from the program. Files for developers of ttmbench
(`OUTSIDE`) are not on the site. Links are written as they work in the repository, and are turned here: to the page of a
file if it has one, to the file at ``TTMBENCH_REPOSITORY`` if that is set (https://host/owner/name), else to its name
alone. An image ``x.png`` that has an ``x_dark.png`` beside it is shown light and dark, and so is a ``<picture>`` of the
two.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

sys.path.insert(0, str(Path(__file__).parent))

import benchmark_pages as benchmarks
import command_pages as commands
import key_tables
import tables
from page_parts import table

from ttmbench._util.file_io import LIMITS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page


ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "TTMBENCH_REPOSITORY"
# Files outside docs/ -> their page on the site.
FILES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "reporting.md",
    "tests/evidence/parity.yaml": "parity.md",
    "tests/evidence/families.md": "families.md",
    "ttmbench/results/schemas/results-1.0.json": "results-keys.md",
}
# Files of docs/ that the site does not show: decision records and the architecture, for developers.
OUTSIDE = ("adr/", "architecture.md")
# Data of the repository -> the page that shows it.
MADE = {
    "model_adapters/named_models.json": "named-models.md",
}
# A page for each benchmark, made from its task files.
BENCHMARKS = "benchmarks/"
# First part of a page's place -> its weight in search.
BOOST = {**dict.fromkeys(("metrics.md", "ttm.md", "scorers.md", "statistics.md", "methods.md"), 4), "api": 0.5}
BOOST |= {"results-keys.md": 0.5}
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
BADGES = re.compile(r"<!-- badges -->\n(?:\[!\[.*\n)*")
PICTURE = re.compile(r'<picture>.*?<img alt="([^"]*)" src="([^"]*)"[^>]*>.*?</picture>', flags=re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
EXAMPLE = re.compile(r"^\[[^\]]+\]\((?:\.\./)*examples/([\w.-]+)\)$", flags=re.MULTILINE)


def pages() -> dict[str, str]:
    """Every page that no file of docs/ is: place on the site -> Markdown, links as in the repository."""
    made = {page: (ROOT / file).read_text(encoding="utf-8") for file, page in FILES.items()}
    made |= {"parity.md": parity(made["parity.md"]), "results-keys.md": key_tables.results_page()}
    start = BADGES.sub("", made["index.md"])  # the site shows nothing from other hosts
    made["index.md"] = f"---\nhide: [navigation]\n---\n\n{start}"
    return (
        made
        | api_pages()
        | benchmarks.pages()
        | {
            MADE["model_adapters/named_models.json"]: tables.page(),
        }
        | commands.command_pages()
        | {commands.ARGUMENTS: commands.arguments_page()}
    )


def parity(text: str) -> str:
    """The page of comparisons with reference implementations, from its YAML file."""
    lines = ["# Comparison with reference implementations", ""]
    lines.append("Every scorer, data loader and test-time method is tested against a reference implementation;")
    lines.append("[Evidence](../../docs/evidence.md#reference-implementations) explains how. The last column lists")
    lines.append("deliberate differences from the reference.")
    for section, rows in yaml.safe_load(text).items():
        cells = [(row["what"], row["reference"], row["difference"], row.get("deliberate", "-")) for row in rows]
        head = ("what", "reference", "largest difference", "deliberate differences")
        lines += ["", f"## {section}", "", table(head, cells)]
    return "\n".join([*lines, ""])


def with_examples(text: str) -> str:
    """A page with the script below each line that is a link to one of docs/examples."""

    def shown(link: re.Match[str]) -> str:
        script = (ROOT / "docs" / "examples" / link[1]).read_text(encoding="utf-8")
        return f"{link[0]}\n\n```{'python' if link[1].endswith('.py') else 'bash'}\n{script}```"

    return EXAMPLE.sub(shown, text)


def with_limits(text: str) -> str:
    """The page on untrusted files with a table of all limits, from the comments of their module."""
    source = (ROOT / "ttmbench" / "_util" / "file_io.py").read_text(encoding="utf-8")
    meanings = dict(re.findall(r'^    "(\w+)": [^#]+#  ?(.+)$', source.replace("  # ", " # "), flags=re.MULTILINE))
    rows = [(f"`{name}`", f"{value:,}", meanings[name]) for name, value in LIMITS.items()]
    return text.replace("<!-- limits -->", table(("limit", "default", "meaning"), rows))


def api_pages() -> dict[str, str]:
    """The public names and modules of the package, a page a module; mkdocstrings fills them from docstrings."""
    import ttmbench

    modules = ttmbench._MODULES
    homes = {name: home for home, names in ttmbench._HOME.items() for name in names}
    top_level = sorted(name for name, home in homes.items() if home not in modules)
    lines = [
        "# ttmbench",
        "",
        "This page lists what programs can import. [Run evaluations](../running.md#from-python) shows how to use it.",
        "",
    ]
    rows = []
    for module in sorted(modules):
        names = ", ".join(f"`{name}`" for name in sorted(homes) if homes[name] == module)
        rows.append((f"[`ttmbench.{module}`]({module}.md)", names or "-"))
    lines.append(table(("module", "contents, also available from `ttmbench` itself"), rows))
    for name in top_level:
        lines += ["", f"::: ttmbench.{homes[name]}.{name}"]
    made = {"api/index.md": "\n".join([*lines, ""])}
    for module in modules:
        made[f"api/{module}.md"] = f"# ttmbench.{module}\n\n::: ttmbench.{module}\n    options:\n" + (
            "      show_root_heading: false\n      show_root_toc_entry: false\n"
        )
    return made


def source_of(page: str) -> str:
    """The file of the repository that a page of the site is made from."""
    return next((file for file, made in FILES.items() if made == page), f"docs/{page}")


def turn_links(text: str, page: str, repository: str = "") -> str:
    """Markdown of a page of the site, its links to pages of the site, to files at the repository, or without a link.

    Code is left alone. The repository's address is empty if it has none. ValueError for a link to a file that is not
    there.
    """

    def turned(match: re.Match[str]) -> str:
        mark, shown, target = match.groups()
        address, hash_sign, anchor = target.partition("#")
        if not address or re.match(r"[a-z]+:", address):
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source_of(page)), address))
        path = _place(file)
        if path is not None:
            here = posixpath.relpath(path, posixpath.dirname(page) or ".")
            name, dot, ending = here.rpartition(".")
            if mark and (ROOT / "docs" / path).with_stem(f"{Path(path).stem}_dark").exists():
                return f"![{shown}]({here}#only-light)![{shown}]({name}_dark{dot}{ending}#only-dark)"
            return f"{mark}[{shown}]({here}{hash_sign}{anchor})"
        if file.startswith("..") or not (ROOT / file).exists():
            raise ValueError(f"{source_of(page)}: there is no {target}")
        return f"[{shown}]({repository.rstrip('/')}/blob/main/{file}{hash_sign}{anchor})" if repository else shown

    text = PICTURE.sub(r"![\1](\2)", text)
    return _outside(FENCE, text, lambda part: _outside_code(part, turned))


def _outside_code(text: str, turned: Callable[[re.Match[str]], str]) -> str:
    """Replaces links but those inside of code; the text of a link may itself be code."""
    codes = [match.span() for match in CODE.finditer(text)]
    return LINK.sub(
        lambda match: match[0] if any(start < match.start() < end for start, end in codes) else turned(match), text
    )


def _place(file: str) -> str | None:
    """Where a file or folder of the repository is on the site; None if it is not there."""
    if file in FILES:
        return FILES[file]
    if file in MADE:
        return MADE[file]
    if file.startswith("tasks/"):
        return benchmarks.page_of(file)
    if not file.startswith("docs/"):
        return None
    inside = file.removeprefix("docs/")
    if inside.startswith(("api/", BENCHMARKS)):
        return inside
    if inside.startswith(OUTSIDE) or not (ROOT / file).is_file():
        return None
    return inside


def plain_tables(text: str) -> str:
    r"""Code in tables without the backslash before ``|`` that GitHub needs, and Python-Markdown shows."""

    def row(line: str) -> str:
        return CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line

    return _outside(FENCE, text, lambda part: "\n".join(map(row, part.split("\n"))))


def _outside(pattern: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """Changes what lies between the matches of a pattern."""
    parts, last = [], 0
    for match in pattern.finditer(text):
        parts += [change(text[last : match.start()]), match[0]]
        last = match.end()
    return "".join([*parts, change(text[last:])])


def slug(text: str, separator: str) -> str:
    """The anchor of a heading, as GitHub makes it, so that a link works in both places."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


# What mkdocs calls, by name.


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors as on GitHub, the pages of benchmarks, and the package of this checkout for the API."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    for entries in (entries for section in config.nav for entries in section.values() if isinstance(entries, list)):
        for entry in entries:
            if isinstance(entry, dict) and BENCHMARKS in entry.values():
                entry.update(dict.fromkeys(entry, sorted(benchmarks.pages())))
    sys.path.insert(0, str(ROOT))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that no file of docs/ is, and removes what the site does not show."""
    from mkdocs.structure.files import File

    for file in [file for file in files if file.src_uri.startswith(OUTSIDE)]:
        files.remove(file)
    for page, text in pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """A page as the site shows it; search finds explanations before lists of names."""
    page.meta.setdefault("search", {"boost": BOOST.get(page.file.src_uri.partition("/")[0], 1)})
    text = with_examples(turn_links(markdown, page.file.src_uri, os.environ.get(VARIABLE, "")))
    tables = {"command-line.md": commands.with_options, "task-file.md": key_tables.with_tables}
    filled = {**tables, "security.md": with_limits}.get(page.file.src_uri)
    return plain_tables(filled(text) if filled else text)
