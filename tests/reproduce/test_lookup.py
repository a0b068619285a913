"""What `ttmbench show` prints of published numbers: all can be found by every name of their task and model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.documents import raw_run

from ttmbench.cli import main
from ttmbench.reproduce.compared import compare, select
from ttmbench.reproduce.tables import load_table, named, published_rows, shipped_tables
from ttmbench.results.document import ResultsDocument


@pytest.fixture(scope="module")
def every(registry):
    return published_rows(registry)


@pytest.fixture(autouse=True)
def _read_once(every, monkeypatch):
    monkeypatch.setattr("ttmbench.reproduce.tables.published_rows", lambda *_: every)


def printed(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_every_published_row_is_found_by_its_task_and_by_its_model(every, registry):
    tables = [table for table in map(load_table, shipped_tables()) if not table.spec.own]
    rows = {(table.name, number.where) for table in tables for number in table.numbers}
    assert len(rows) == sum(len(table.numbers) for table in tables) == len(every)

    def found(names):
        return {(row.table.name, row.printed.where) for name in names for row in named(every, name)}

    assert found({number.task for table in tables for number in table.numbers}) == rows
    assert found({number.model for table in tables for number in table.numbers}) == rows
    assert len(found(registry.task_files)) > 0.8 * len(rows)


def test_a_model_has_the_numbers_of_all_its_names(every):
    names = {row.printed.model for row in named(every, "clip-b32")}
    assert {"openai/clip-vit-base-patch32", "clip ViT-B/32 openai", "clip-b32 (itc)", "clip (itc)"} <= names
    assert not any("finetuned" in name for name in names), "other weights"
    by_hub = {row.printed.where for row in named(every, "openai/clip-vit-base-patch32")}
    assert by_hub == {row.printed.where for row in named(every, "clip-b32")}
    large = {row.number.origin.file.partition(",")[0] for row in named(every, "openai/clip-vit-large-patch14")}
    assert {"mteb", "open_clip"} <= large, "a repository without a name of its own"
    assert {row.number.method for row in named(every, "ttm")} == {"ttm"}


def test_all_numbers_as_a_table_and_as_json(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys, "show", "winoground", "--published")
    assert max(map(len, text.splitlines())) <= 80 and "69.75 ± 0.56" in text
    rows = json.loads(printed(capsys, "show", "winoground", "--published", "--json"))
    assert len(rows) == 287 and all(row["published"] for row in rows)
    place = ("mteb, Winoground", "clip-b32", "group_score")
    (row,) = (row for row in rows if (row["file"], row["model"], row["metric"]) == place)
    assert (row["value"], row["groups"], row["chance"]) == (0.09, 400, pytest.approx(1 / 6))
    chosen = json.loads(printed(capsys, "show", "gpt-4v (choice)", "--json"))
    assert {row["chance"] for row in chosen if row["metric"] == "group_score"} == {0.0625}, "choices, not scores"
    assert "mteb, SugarCrepe" in " ".join(printed(capsys, "show", "sugarcrepe_swap_att", "--published").split())


def test_names_that_only_sources_have(capsys):
    assert "mteb" in printed(capsys, "show", "voyageai/voyage-multimodal-3")
    assert "arXiv:2406.09388" in printed(capsys, "show", "gnm-clip")
    assert "nothing is published about shapes_color here" in printed(capsys, "show", "shapes_color", "--published")
    assert printed(capsys, "show", "shapes_color", "--published", "--json") == "[]\n"
    assert "TTM" in printed(capsys, "show", "ttm", "--published")
    assert main(["show", "gnm-clp"]) == 2
    assert "did you mean 'gnm-clip'" in capsys.readouterr().err


def test_weights_that_are_downloaded_by_hand_are_known_by_the_name_alone(registry):
    """Any file under the name is of the row, and the same file under the name of the kind of model is not."""
    table = select(load_table("vl_compo_family"), ["dac-llm"], ["winoground"])

    def verdicts(model, arguments):
        document = raw_run(model, {"winoground": (400, {"group_score": 0.0475})}, arguments)
        rows = compare(table, [(Path("x.json"), ResultsDocument.model_validate(document))], registry)
        return {row.number.metric: row.verdict for row in rows}

    file = {"pretrained": "LLM_cp.pt"}
    assert verdicts("dac-llm", file)["group_score"] == "agrees"
    for name, arguments in (("open_clip", {**registry.adapters["dac-llm"].model_args, **file}), ("dac-sam", file)):
        assert verdicts(name, arguments)["group_score"] == "missing", name
