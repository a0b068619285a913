"""What a report opens with: raw, SimpleMatch and TTM of every task and model, with chance and published numbers."""

from __future__ import annotations

import pytest
from support.documents import PUBLISHED, write_run

from ttmbench.cli import main
from ttmbench.report.board import answer_of
from ttmbench.report.load import gather
from ttmbench.reproduce.tables import published_beside_runs

KEYS = ("group_score,none", "group_match,none", "group_match,ttm")


def write(folder, name, values=(0.2, 0.5, 0.75), task="t", model="m", date=0.0, scored=10):
    """A run with a group score, SimpleMatch and, if there are three values, TTM."""
    chance = {task: {"group_score": 1 / 6, "group_match": 0.5}}
    numbers = dict(zip(KEYS, values, strict=False))
    write_run(folder, name, numbers, task, (scored, 10), model_name=model, date=date, chance=chance)


def values_of(row):
    return [None if one is None else one.value for one in (row.raw, row.matched, row.ttm)]


def test_a_row_for_every_task_and_model_with_chance(tmp_path):
    write(tmp_path, "old.json", values=(0.1, 0.1, 0.1))
    write(tmp_path, "new.json", date=1.0)
    write(tmp_path, "part.json", date=2.0, scored=3, values=(1.0, 1.0))
    write(tmp_path, "other.json", model="a", values=(0.3, 0.6))
    write(tmp_path, "task.json", task="u")
    rows = answer_of(gather(tmp_path)[0])
    assert [(row.task, row.model, row.extents, row.limited) for row in rows] == [
        ("t", "a", "10", False),
        ("t", "m", "10", False),
        ("t", "m", "3 of 10", True),
        ("u", "m", "10", False),
    ]
    assert [values_of(row) for row in rows[:3]] == [[0.3, 0.6, None], [0.2, 0.5, 0.75], [1.0, 1.0, None]]
    assert [row.gain for row in rows[:3]] == [None, 0.25, None]
    assert [one.chance for one in rows[1].numbers] == pytest.approx([1 / 6, 0.5, 0.5])


def test_published_numbers_stand_beside_those_of_their_name(tmp_path):
    write(tmp_path, "x.json", model="clip")
    write(tmp_path, "y.json", model="siglip")
    (tmp_path / "p.csv").write_text(
        PUBLISHED
        + "paper,Table 1,t,clip,raw,group_score,7.25,,zero_shot\n"
        + "paper,Table 1,t,clip,simple_match,group_match,60,,zero_shot\n"
        + "paper,Table 1,t,clip,ttm,group_match,70,1.5,zero_shot\npaper,Table 2,t,gpt,raw,text_score,50,,zero_shot\n"
        + "paper,Table 1,absent,clip,raw,group_score,1,,zero_shot\n"
    )
    rows = answer_of(gather(tmp_path)[0], published_beside_runs([str(tmp_path / "p.csv")]).numbers)
    assert [(row.model, row.source) for row in rows] == [
        ("clip", ""),
        ("clip", "paper, Table 1"),
        ("siglip", ""),
        ("gpt", "paper, Table 2"),
    ]
    assert values_of(rows[1]) == [0.0725, 0.6, 0.7] and rows[1].gain == pytest.approx(0.1)
    assert rows[1].raw.chance == pytest.approx(1 / 6), "chance is the task's, whoever measured"
    assert rows[3].raw.metric == "text_score" and rows[3].raw.chance is None
    words = ["report", str(tmp_path), "--images", "none", "-o", str(tmp_path / "page.html"), "--published"]
    assert main([*words, str(tmp_path / "p.csv")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.index('<h2 id="answer"') < page.index("published: paper, Table 1") < page.index('<h2 id="results"')
    assert main([*words, str(tmp_path / "absent.csv")]) != 0


def test_global_tasks_and_models_that_only_choose(tmp_path):
    values = {"group_score,none": 0.1, "group_match,none": 0.6, "global_assignment_accuracy,none": 0.3}
    tracks = {"g": {"global_assignment_accuracy,none": "matching"}}
    write_run(tmp_path, "g.json", values, "g", tracks=tracks, configs={"g": {"matching": "global"}})
    tracks = {"c": {"group_score,choice": "forced_choice"}}
    write_run(tmp_path, "c.json", {"group_score,choice": 0.4}, "c", tracks=tracks)
    chosen, matched = answer_of(gather(tmp_path)[0])
    assert values_of(chosen) == [0.4, None, None] and chosen.raw.column == "forced choice"
    assert matched.matched.metric == "global_assignment_accuracy"


def test_a_task_that_ranks_stands_beside_published_numbers_by_its_first_metric(tmp_path):
    numbers, task = {"i2t_recall_at_1,none": 0.5, "t2i_recall_at_1,none": 0.25}, "coco_retrieval"
    write_run(tmp_path, "x.json", numbers, task, tracks={task: dict.fromkeys(numbers, "zero_shot")})
    own, *others = answer_of(gather(tmp_path)[0], published_beside_runs(["openclip_retrieval"]).numbers)
    assert (own.source, own.raw.metric, own.raw.value) == ("", "i2t_recall_at_1", 0.5) and own.matched is None
    assert others and all(row.source and row.raw.metric == "i2t_recall_at_1" for row in others)
