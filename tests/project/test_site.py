"""The site: every page has its place, and links and anchors lead somewhere. The build itself is `make docs`."""

from __future__ import annotations

import re

import pytest
import yaml
from support.pages import ROOT
from support.scripts import load_script

import ttmbench

hooks = load_script("docs/site_hooks")


class Loader(yaml.SafeLoader):
    """Of mkdocs.yml, whose own tag names a variable of the environment."""


Loader.add_constructor("!ENV", lambda loader, node: loader.construct_sequence(node)[-1])
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)


def in_navigation(entries) -> list[str]:
    found = []
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        found += in_navigation(value) if isinstance(value, list) else [value]
    return found


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Every page of the site by its place, as it is written in the repository."""
    written = {
        path.relative_to(ROOT / "docs").as_posix(): path.read_text(encoding="utf-8")
        for path in (ROOT / "docs").rglob("*.md")
    }
    made = hooks.pages()
    assert not set(written) & set(made), "a page is made, and is in docs/ too"
    return written | made


def test_every_page_is_in_the_navigation_once(pages):
    listed = in_navigation(CONFIG["nav"])
    assert sorted(listed) == sorted({page for page in pages if not page.startswith("adr/")} | {"adr/"})


def test_nothing_in_the_configuration_asks_another_host():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert CONFIG["theme"]["font"] is False and "offline" in CONFIG["plugins"] and "http" not in text
    assert CONFIG["extra"]["polyfills"] == ["assets/iframe-worker.js"]  # else the plugin names a host


def anchors(text: str) -> set[str]:
    """Of the headings of a page, those given several times with a number."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *$", hooks.FENCE.sub("", text), flags=re.MULTILINE):
        name = hooks.slug(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading), "-")
        found.add(name if name not in found else f"{name}_{sum(one.startswith(f'{name}_') for one in found) + 1}")
    return found


def test_every_link_and_anchor_of_every_page_leads_somewhere(pages):
    count = 0
    for page, text in pages.items():
        turned = hooks.FENCE.sub("", hooks.turn_links(text, page))
        for _, _, target in hooks.LINK.findall(hooks.CODE.sub("code", turned)):
            address, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", address) or anchor.startswith("only-"):  # a scheme of colours, no anchor
                continue
            place = (ROOT / "docs" / page).parent.joinpath(address).resolve() if address else ROOT / "docs" / page
            name = place.relative_to(ROOT / "docs").as_posix()
            assert name in pages or place.is_file(), (page, target)
            assert not anchor or anchor in anchors(pages[name]), (page, target)
            count += 1
    assert count > 300


@pytest.mark.parametrize(
    ("page", "link", "turned"),
    [
        ("index.md", "[x](docs/concepts.md#metrics)", "[x](concepts.md#metrics)"),
        ("index.md", "![x](docs/images/styles.png)", "![x](images/styles.png)"),
        ("index.md", "[x](docs/adr)", "[x](adr/index.md)"),
        ("concepts.md", "[x](../CONTRIBUTING.md#tests)", "[x](contributing.md#tests)"),
        ("lessons/first-lesson.md", "[x](first-lesson.ipynb)", "[x](first-lesson.ipynb)"),
        ("adr/0001-x.md", "[x](../concepts.md)", "[x](../concepts.md)"),
        ("adr/0001-x.md", "[`chance`](../../ttmbench/chance.py)", "`chance`"),
        ("contributing.md", "[x](https://example.org) [y](#tests)", "[x](https://example.org) [y](#tests)"),
        (
            "contributing.md",
            "![x](docs/images/site_start.png)",
            "![x](images/site_start.png#only-light)![x](images/site_start_dark.png#only-dark)",
        ),
        ("index.md", "`[x](nowhere.md)`", "`[x](nowhere.md)`"),
        ("index.md", "```text\n[x](nowhere.md)\n```", "```text\n[x](nowhere.md)\n```"),
    ],
)
def test_links_are_turned_as_the_site_needs_them(page, link, turned):
    assert hooks.turn_links(link, page) == turned


@pytest.mark.parametrize("link", ["[x](nowhere.md)", "[x](../../outside.md)", "[x](docs/images/nothing.png)"])
def test_a_link_to_nothing_ends_the_build(link):
    with pytest.raises(ValueError, match=r"README\.md: there is no "):
        hooks.turn_links(link, "index.md")


def test_pipes_in_code_of_tables_show_without_their_backslash():
    text = "| `a\\|b` | c \\| d |\n`a\\|b`\n```text\n| `a\\|b`\n```"
    assert hooks.plain_tables(text) == "| `a|b` | c \\| d |\n`a\\|b`\n```text\n| `a\\|b`\n```"


def test_the_api_has_every_public_name_and_module():
    made = hooks.api_pages()
    assert {f"api/{name}.md" for name in ttmbench._MODULES} == set(made) - {"api/index.md"}
    first = made["api/index.md"]
    for name in set(ttmbench.__all__) - {"__version__"}:
        assert re.search(rf"(?:::: ttmbench\.[\w.]*\.{name}$|`(?:ttmbench\.)?{name}`)", first, re.MULTILINE), name
