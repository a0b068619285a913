"""The README says what is so: times, numbers of papers, numbers computed from released scores, how to cite."""

from __future__ import annotations

import re
from pathlib import Path

import ttmbench
from ttmbench.reproduce.tables import load_table

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MODELS = {
    "CLIP ViT-B/32": "clip-b32 (itc)",
    "CLIP ViT-B/16": "clip-b16",
    "SigLIP ViT-B/16": "siglip-b16",
    "SigLIP ViT-L/16": "siglip-l16",
    "VinVL": "vinvl",
    "GPT-4.1": "gpt-4.1",
    "people": "human",
}
SOURCES = {"a": "winoground_main", "b": "ttm_table1"}
METHODS = {"group score": "raw", "group match": "SimpleMatch", "TTM": "TTM"}


def known_rows() -> dict[str, dict[tuple[str, str], str]]:
    """Model -> (number, where it is from) -> cell of the table of known models."""
    table = re.search(r"<!-- known -->\n(.*?)<!-- /known -->", TEXT, re.DOTALL)
    assert table is not None
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    kinds: list[tuple[str, str]] = []
    for head in lines[0][1:]:
        name, _, where = head.partition(", ")
        kinds.append((name, where) if where else (kinds[-1][0], name))
    return {row[0]: dict(zip(kinds, row[1:], strict=True)) for row in lines[2:]}


def test_published_numbers_are_those_of_the_tables():
    published = {}
    for mark, name in SOURCES.items():
        for number in load_table(name).numbers:
            if number.task == "winoground" and number.metric in ("group_score", "group_match"):
                std = number.seed_std
                spread = "" if std is None else f" ± {100 * std:.2f}"
                published[number.model, number.column] = f"{100 * number.value:.2f}{spread} ({mark})"
    rows = known_rows()
    assert set(rows) == {"chance", *MODELS}
    for shown, model in MODELS.items():
        for kind, method in METHODS.items():
            assert rows[shown][kind, "published"] == published.get((model, method), "-"), (shown, kind)


def test_numbers_computed_here_are_those_of_the_released_scores(real_scores):
    files = {"CLIP ViT-B/32": "clip", "VinVL": "vinvl", "people": "human"}
    for shown, row in known_rows().items():
        expected = {"group score": "-", "group match": "-"}
        if shown == "chance":
            expected = {"group score": "16.67", "group match": "50.00"}
        if shown in files:
            found = ttmbench.score(real_scores / f"{files[shown]}.jsonl", "winoground", bootstrap_iters=0)
            values = found.results["winoground"]
            expected = {
                "group score": f"{100 * values['group_score,none']:.2f} (c)",
                "group match": f"{100 * values['group_match,none']:.2f} (c)",
            }
        for name, value in expected.items():
            assert row[name, "ttmbench"] == value, (shown, name)
