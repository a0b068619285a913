"""Answers and ranks of submitted samples, read again."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ttmbench.errors import DataError
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.reproduce.submission.lines import check_rank_lines, choices_of
from ttmbench.results.ranks import Ranks
from ttmbench.results.ranks_file import StoredRanks
from ttmbench.results.records import ChoiceRecord
from ttmbench.types import GroupShape

RECORD = ChoiceRecord(asked=["text", "image"], orders=1, unread=[])


def answers(*chosen, right=None):
    """One answer to each question of a 2x2 group."""
    questions = ["image 1", "image 2", "caption 1", "caption 2"]
    return [
        {"question": name, "chosen": one, "right": one == place % 2 if right is None else right}
        for place, (name, one) in enumerate(zip(questions, chosen, strict=True))
    ]


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_an_answer_is_right_if_it_names_what_is_true(tmp_path):
    path = write(
        tmp_path / "s.jsonl",
        {"group_id": "a", "cluster": "a", "answers": answers(0, 1, 0, 1)},
        {"group_id": "b", "cluster": "a", "answers": answers(1, 1, 0, None)},
    )
    choices, clusters = choices_of(path, GroupShape(2, 2), RECORD)
    assert choices.text.tolist() == [[True, True], [False, True]]
    assert choices.image.tolist() == [[True, True], [True, False]] and clusters.count == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"answers": answers(1, 1, 0, 1, right=True)}, "'right' is True, the choice is False"),
        ({"answers": answers(0, 1, 0, 1)[:3]}, "has not 1 answers to each question of side image"),
        ({"answers": [{"question": "image x"}]}, "has a question that is none"),
        ({"answers": 7}, "has not 1 answers"),
    ],
)
def test_answers_that_are_not_what_they_say(tmp_path, line, said):
    with pytest.raises(DataError, match=said):
        choices_of(write(tmp_path / "s.jsonl", line), GroupShape(2, 2), RECORD)


def test_ranks_of_samples_are_those_of_the_file(tmp_path):
    stored = StoredRanks({"i2t": Ranks(np.array([0, 2]), None, None, np.array([1, 1]), 4)})
    counts = {"as_topk": None, "above": None}
    lines = [{"query": "image", "ranks": {"strict": rank, **counts}, "metrics": {}} for rank in (0, 2)]
    findings = Findings()
    check_rank_lines(write(tmp_path / "s.jsonl", *lines), stored, [], findings)
    assert not findings.found
    lines[1]["ranks"]["strict"] = 0
    check_rank_lines(write(tmp_path / "s.jsonl", *lines), stored, [], findings)
    assert "line 2: ranks is {'strict': 0," in findings.found[0].line
    check_rank_lines(write(tmp_path / "s.jsonl", lines[0]), stored, [], findings)
    assert "has 1 lines of 'i2t', the file of ranks 2 queries" in findings.found[1].line
