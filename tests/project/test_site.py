"""What the hooks of the site make of pages; `make docs` builds it and checks navigation, links and anchors."""

from __future__ import annotations

import re

import pytest
import yaml
from support.checkout import PAGES, ROOT, load_script
from support.documents import schema

import ttmbench
from ttmbench._util.file_io import LIMITS
from ttmbench.data.benchmarks import benchmarks

hooks = load_script("docs/site_hooks")


class Loader(yaml.SafeLoader):
    """Of mkdocs.yml, whose own tag names a variable of the environment."""


Loader.add_constructor("!ENV", lambda loader, node: loader.construct_sequence(node)[-1])
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)


def test_nothing_in_the_configuration_asks_another_host():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert CONFIG["theme"]["font"] is False and "offline" in CONFIG["plugins"] and "http" not in text
    assert CONFIG["extra"]["polyfills"] == ["assets/iframe-worker.js"]  # else the plugin names a host


OFF_SITE = [page for page in PAGES if hooks._place(str(page.relative_to(ROOT))) is None]


@pytest.mark.parametrize("page", OFF_SITE, ids=[page.name for page in OFF_SITE])
def test_links_of_pages_that_the_site_does_not_show_lead_somewhere(page):
    for _, _, target in hooks.LINK.findall(hooks.FENCE.sub("", page.read_text(encoding="utf-8"))):
        address, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = page.parent / address if address else page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {hooks.slug(heading, "-") for heading in headings}, target


def test_generated_tables_have_every_limit_and_every_key():
    shown = hooks.with_limits("<!-- limits -->")
    assert all(f"| `{name}` | {value:,} | " in shown for name, value in LIMITS.items())
    keys = hooks.pages()["results-keys.md"]
    assert "## MethodRecord" in keys and all(f"| `{key}`" in keys for key in schema("results")["properties"])


def test_the_api_has_every_public_name_and_module():
    made = hooks.api_pages()
    assert not any((ROOT / "docs" / name).exists() for name in hooks.pages()), "a page is made, and is in docs/ too"
    assert {f"api/{name}.md" for name in ttmbench._MODULES} == set(made) - {"api/index.md"}
    first = made["api/index.md"]
    for name in set(ttmbench.__all__) - {"__version__"}:
        assert re.search(rf"(?:::: ttmbench\.[\w.]*\.{name}$|`(?:ttmbench\.)?{name}`)", first, re.MULTILINE), name


def test_every_benchmark_has_a_page_with_its_files_chance_and_problems():
    pages = hooks.benchmarks.pages()
    assert all(text.startswith("# ") and "| `" in text for text in pages.values())
    for benchmark in benchmarks():
        page = pages[f"benchmarks/{benchmark.name}.md"]
        for spec in hooks.benchmarks.tasks_of(benchmark):
            wanted = f"| `{spec.task}` | {spec.extent}", spec.license, spec.label_errors.strip().rstrip(".")
            assert all(text in page for text in wanted), spec.task
    assert "| `group_score` | 16.67 | 16.67 |" in pages["benchmarks/winoground.md"]
    assert hooks.turn_links("[x](../tasks/whatsup_a.yaml)", "tasks.md") == "[x](benchmarks/whatsup.md)"
