"""Per-sample results that others publish: scored in the formats in which they are stored, and refused in one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError

SCORES = np.random.default_rng(3).normal(20, 3, size=(6, 2, 2))
CELLS = [(f"c{caption}_i{image}", image, caption) for image in range(2) for caption in range(2)]
ROWS = [{"group_id": at, **{name: float(block[i, c]) for name, i, c in CELLS}} for at, block in enumerate(SCORES)]


def table(path: Path, rows: list[dict]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
    return path


def numbers(path: Path, task: str = "bivlc", **options: object) -> dict[str, float | None]:
    """Metric -> value."""
    results = ttmbench.score(path, task, limit=len(SCORES), bootstrap_iters=0, **options).results[task]
    return {key.partition(",")[0]: value for key, value in results.items() if "_stderr" not in key}


def test_columns_of_scores_give_the_numbers_of_the_array(tmp_path):
    expected = ttmbench.score(SCORES, "bivlc", limit=6, bootstrap_iters=0).results["bivlc"]
    path = table(tmp_path / "table.csv", ROWS)
    assert ttmbench.score(path, "bivlc", limit=6, bootstrap_iters=0).results["bivlc"] == expected


def bivlc_rows() -> list[dict]:
    """As IMirandaM/BiVLC stores the results of a model."""
    right = SCORES > SCORES[:, :, ::-1], SCORES > SCORES[:, ::-1, :]
    rows = []
    for at in range(len(SCORES)):
        i, c = ([bool(side[at, n, n]) for n in range(2)] for side in right)
        about = {"image": "<PIL image>", "caption": "a, b", "type": "add", "subtype": "obj"}
        asked = {"text_score_i0": i[0], "text_score_i1": i[1], "image_score_c0": c[0], "image_score_c1": c[1]}
        rows.append(about | asked | {"text_score": all(i), "image_score": all(c), "group_score": all(i + c)})
    return rows


def test_answers_to_each_question_give_what_the_scores_give(tmp_path):
    path = table(tmp_path / "m.csv", bivlc_rows())
    of_scores = ttmbench.score(SCORES, "bivlc", limit=6, bootstrap_iters=0)
    results = ttmbench.score(path, "bivlc", limit=6)
    values = numbers(path)
    assert set(values) == {"text_score", "image_score", "group_score", "individual_match"}
    assert values == {name: of_scores.results["bivlc"][f"{name},none"] for name in values}
    document = results.document
    assert document["chance"]["bivlc"] == {name: of_scores.document["chance"]["bivlc"][name] for name in values}
    assert document["ties"]["bivlc"] == {f"{name},none": None for name in values}
    assert any("not computed without scores: group_match" in note for note in document["notes"]["bivlc"])
    assert results.tasks["bivlc"].data.groups[0].tags == {"type": "add", "subtype": "obj"}


def test_answers_in_words_have_their_own_chance(tmp_path):
    path = table(tmp_path / "m.csv", bivlc_rows())
    document = ttmbench.score(path, "bivlc", limit=6, choice=True).document
    assert document["chance"]["bivlc"] == {"text_score": 0.25, "image_score": 0.25, "group_score": 0.0625}
    assert set(document["tracks"]["bivlc"].values()) == {"forced_choice"}
    with pytest.raises(UsageError, match="--choice is for results of groups"):
        ttmbench.score(table(tmp_path / "s.csv", ROWS), "bivlc", limit=6, choice=True)


def test_all_parts_of_a_dataset_from_one_file(tmp_path, capsys):
    parts = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
    rows = [
        {"filename": f"{at // 2}.jpg", "caption": "a", "type": part[:-4], "subtype": part[-3:], "correct": int(at < n)}
        for n, part in enumerate(parts)
        for at in range(6)
    ]
    path, target = table(tmp_path / "SUGARCREPE_CORRECT.csv", rows), tmp_path / "x.json"
    assert main(["score", str(path), "--task", "sugarcrepe", "--limit", "6", "-o", str(target)]) == 0
    document = json.loads(target.read_text(encoding="utf-8"))
    assert [document["results"][f"sugarcrepe_{part}"]["text_score,none"] for part in parts] == [n / 6 for n in range(7)]
    assert document["results"]["sugarcrepe_add_obj"]["group_match,none"] == 1 / 6
    assert document["groups"]["sugarcrepe"]["text_score,none"] == 0.5
    assert document["n-samples"]["sugarcrepe_add_att"]["clusters"] == 3  # of one image each
    named = table(
        tmp_path / "named.csv", [{"subset": f"{row['type']}_{row['subtype']}", **row, "type": ""} for row in rows]
    )
    for one in (path, named):
        assert numbers(one, "sugarcrepe_swap_att")["text_score"] == 5 / 6
    with pytest.raises(UsageError, match="do not say which rows of a file are whose"):
        ttmbench.score(path, "paper16")
    better = table(tmp_path / "better.csv", [{**row, "correct": 1} for row in rows])
    assert main(["score", str(better), "--task", "sugarcrepe", "--limit", "6", "-o", str(tmp_path / "y.json")]) == 0
    assert main(["compare", str(target), str(tmp_path / "y.json"), "--metrics", "text_score"]) == 0
    assert "sugarcrepe_swap_obj" in capsys.readouterr().out


WRONG = {
    "no columns": ("a,b\n1,2\n", "has columns a, b"),
    "not said which": ("correct\n1\n", "'correct' does not say which metric of a 2x2"),
    "no truth": ("text_score\n1\n0.5\n", "row 1 has text_score '0.5'"),
    "contradiction": ("text_score_i0,text_score_i1,text_score\n1,0,True\n", "row 0 has text_score"),
    "half the questions": ("text_score_i0\n1\n", "needs text_score_i0, text_score_i1"),
    "missing cell": ("c0_i0,c1_i1\n1,2\n", "not one for each image and caption"),
    "no number": ("c0_i0,c0_i1,c1_i0,c1_i1\n1,2,high,3\n", "group 0 has a score that is nan"),
    "not finite": ("c0_i0,c0_i1,c1_i0,c1_i1\n1,2,nan,3\n", "not a finite number"),
    "other shape": ("c0_i0,c1_i0\n1,2\n", "scores have shape"),
    "twice": ("group_id,text_score\n1,1\n1,0\n", "group_id '1' twice"),
    "other size": ("text_score\n1\n", "has 1 groups, but task 'bivlc'"),
    "short": ("text_score,image_score\n1\n", "row 0 has image_score ''"),
    "long": ("text_score\n1,0\n", "is not CSV"),
    "column twice": ("text_score,text_score\n1,1\n", "each column once"),
    "empty": ("", "is not CSV"),
}


@pytest.mark.parametrize(("content", "expected"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_named_in_one_line(tmp_path, content, expected):
    path = tmp_path / "x.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as refused:
        ttmbench.score(path, "bivlc", bootstrap_iters=0)
    message = str(refused.value)
    assert expected in message and "\n" not in message and message.startswith(str(path))


@pytest.mark.parametrize("content", ['[{"text_score": 1}]', '{"text_score": 1}\n'])
def test_results_in_other_forms_are_refused_with_keys(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError):
        ttmbench.score(path, "bivlc", bootstrap_iters=0)
