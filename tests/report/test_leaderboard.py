"""Results of many runs merged: what is newest, what conflicts, what is left out, and files that others read."""

from __future__ import annotations

import io
import json

import jsonschema
import pandas as pd
import pytest
from support.documents import trained, whole_document

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError
from ttmbench.report import leaderboard_formats as formats
from ttmbench.report.leaderboard import as_document, merge, read_published
from ttmbench.results.files import schema

HEAD = "source,table,task,model,method,metric,percent,std_percent\n"


def write(
    folder, name, *, model="m", date=0.0, value=0.5, task="t", version=1, data="d", filters=("none",), status="done"
):
    """A results document with the group match under some filters."""
    tracks = {"none": "matching", "ttm": "test_time", "oracle": "oracle"}
    document = whole_document(
        {task: {f"group_match,{one}": value for one in filters}},
        tracks={task: {f"group_match,{one}": tracks[one] for one in filters}},
        status=status,
        model_name=model,
        date=date,
        versions={task: version},
        task_hashes={task: data},
        ttm={task: trained()},
    )
    document["n-samples"] = {task: {"original": 10, "effective": 10}}
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def test_the_newest_run_of_a_row_counts(tmp_path):
    write(tmp_path, "a/old.json", date=1.0, value=0.4)
    write(tmp_path, "b/new.json", date=2.0, value=0.6)
    write(tmp_path, "c/older.json", date=0.0, value=0.9)
    board = merge(tmp_path)
    assert [(row.value, row.file) for row in board.rows] == [(0.6, "b/new.json")]
    assert {one["file"] for one in board.superseded} == {"a/old.json", "c/older.json"}
    assert not board.conflicts and not board.skipped


def test_tracks_are_never_mixed(tmp_path):
    write(tmp_path, "x.json", filters=("none", "ttm", "oracle"))
    text = formats.to_markdown(merge(tmp_path))
    parts = text.split("## ")[1:]
    assert [part.split(":")[0] for part in parts] == ["Matching", "Test-time", "Oracle"]
    assert all(part.count("\n| m |") == 1 for part in parts)


def test_other_versions_and_data_are_a_conflict(tmp_path):
    write(tmp_path, "a.json", model="a")
    write(tmp_path, "b.json", model="b", version=2)
    write(tmp_path, "c.json", model="c", data="e")
    (conflict,) = merge(tmp_path).conflicts
    assert conflict["task"] == "t" and len(conflict["variants"]) == 3


def test_one_broken_file_among_many_is_named_and_skipped(tmp_path):
    for number in range(20):
        write(tmp_path, f"{number}.json", model=f"m{number}")
    whole = (tmp_path / "3.json").read_text()
    (tmp_path / "3.json").write_text(whole[: len(whole) // 2])
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "old.json").write_text(json.dumps({"schema_version": "0.3", "results": {}}))
    (tmp_path / "lacking.json").write_text(json.dumps({"schema_version": "1.0", "results": {"t": {}}, "date": 0}))
    write(tmp_path, "unfinished.json", status="running")
    document = json.loads((tmp_path / "unfinished.json").read_text()) | {"results": {}}
    (tmp_path / "unfinished.json").write_text(json.dumps(document))
    board = merge(tmp_path)
    assert len(board.rows) == 19
    assert set(board.skipped) == {"3.json", "list.json", "old.json", "lacking.json", "unfinished.json"}
    assert "status running" in board.skipped["unfinished.json"] and "schema 0.3" in board.skipped["old.json"]


def test_published_numbers_say_so(tmp_path):
    write(tmp_path, "x.json")
    (tmp_path / "p.csv").write_text(
        HEAD + "paper,Table 1,t,clip,ttm,group_match,60.5,0.5\npaper,Table 1,u,clip,raw,group_score,7,\n"
    )
    board = merge(tmp_path, [tmp_path / "p.csv"])
    (row,) = [row for row in board.rows if row.published]
    assert (row.track, row.value, row.seed_std, row.file) == ("test_time", 0.605, 0.005, "paper, Table 1")
    assert board.skipped == {"published numbers of u": "no run has this task"}
    assert "clip (published)" in formats.to_markdown(board)


@pytest.mark.parametrize(
    ("text", "message"), [("a,b\n1,2\n", "no column 'source'"), (HEAD + "s,t,t,m,raw,x,many,\n", "line 2")]
)
def test_wrong_published_files(tmp_path, text, message):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        list(read_published(tmp_path / "p.csv"))


def test_nothing_to_merge(tmp_path):
    with pytest.raises(UsageError, match="no results document"):
        merge(tmp_path)
    with pytest.raises(UsageError, match="no folder"):
        merge(tmp_path / "nowhere")


def test_names_from_data_are_never_code(tmp_path):
    write(tmp_path, "x.json", model="<script>alert(1)</script>|=1+1")
    write(tmp_path, "y.json", model='=HYPERLINK("x")')
    write(tmp_path, "z.json", model=r"a_b%&\input{x}")
    board = merge(tmp_path)
    page = formats.to_html(board, "now")
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert r"\<script\>alert(1)\</script\>\|=1+1" in formats.to_markdown(board)
    table = pd.read_csv(io.StringIO(formats.to_csv(board)))
    assert '\'=HYPERLINK("x")' in set(table["model"])
    assert r"a\_b\%\&\textbackslash{}input\{x\}" in formats.to_latex(board)


def test_the_command_on_a_real_run(tmp_path, capsys):
    ttmbench.simple_evaluate(
        "tiny-clip",
        "shapes_color",
        ttm={"iterations": 1, "epochs": 1},
        oracle=True,
        ttm_controls=["placebo"],
        seeds=[0, 1],
        limit=8,
        device="cpu",
        bootstrap_iters=0,
        output_path=str(tmp_path / "runs"),
    )
    assert main(["leaderboard", str(tmp_path / "runs"), "-o", str(tmp_path / "board")]) == 0
    out = capsys.readouterr().out
    assert "## Zero-shot" in out and "placebo" not in out
    document = json.loads((tmp_path / "board" / "leaderboard.json").read_text())
    jsonschema.Draft202012Validator(schema("leaderboard")).validate(document)
    assert document["tracks"] == ["zero_shot", "matching", "test_time", "oracle"]
    table = pd.read_csv(tmp_path / "board" / "leaderboard.csv")
    adapted = table[(table["track"] == "test_time") & (table["metric"] == "group_match")]
    assert adapted["seeds"].tolist() == [2] and adapted["groups"].tolist() == [8]
    page = (tmp_path / "board" / "leaderboard.html").read_text()
    assert page.count("<table ") == 4 and "http://" not in page and "https://" not in page
    assert main(["leaderboard", str(tmp_path / "runs")]) == 0
    assert main(["leaderboard", str(tmp_path / "runs")]) == 0, "its own leaderboard.json is no run"
    assert "left out" not in capsys.readouterr().out
    assert as_document(merge(tmp_path / "runs"))["rows"] == document["rows"]
