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
ROWS = [{"id": at, **{name: float(block[i, c]) for name, i, c in CELLS}} for at, block in enumerate(SCORES)]


def table(path: Path, rows: list[dict], pad: str = "") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL if not pad else csv.QUOTE_MINIMAL)
        writer.writerow([f"{name}{pad}" for name in rows[0]])
        writer.writerows([f"{pad}{cell}" for cell in row.values()] for row in rows)
    return path


def text(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def numbers(path: Path, task: str = "bivlc", **options: object) -> dict[str, float | None]:
    """Metric -> value."""
    results = ttmbench.score(path, task, limit=len(SCORES), bootstrap_iters=0, **options).results[task]
    return {key.partition(",")[0]: value for key, value in results.items() if "_stderr" not in key}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.json", ROWS),
        ("pretty.json", json.dumps(ROWS, indent=4)),
        ("lines.jsonl", "\n".join(map(json.dumps, ROWS))),
        ("one_based.json", [{f"i{i + 1}_t{c + 1}": row[f"c{c}_i{i}"] for _, i, c in CELLS} for row in ROWS]),
        ("named.json", [{f"score_caption{c}_image{i}": row[f"c{c}_i{i}"] for _, i, c in CELLS} for row in ROWS]),
        ("by_id.json", {f"g{row.pop('id')}": row for row in map(dict, ROWS)} | {"accuracy": 0.5}),
        ("columns.json", {name: [row[name] for row in ROWS] for name in ROWS[0]}),
        ("nested.json", SCORES.tolist()),
        ("inside.json", {"model": "a", "samples": [{"scores": block.tolist()} for block in SCORES]}),
        ("table.csv", ROWS),
        ("padded.csv", ROWS),
    ],
)
def test_scores_in_every_form_give_the_numbers_of_the_array(tmp_path, name, content):
    path = tmp_path / name
    if name.endswith(".csv"):
        table(path, content, pad=" " if name == "padded.csv" else "")
    else:
        text(path, content)
    expected = ttmbench.score(SCORES, "bivlc", limit=6, bootstrap_iters=0).results["bivlc"]
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
        ttmbench.score(text(tmp_path / "s.json", ROWS), "bivlc", limit=6, choice=True)


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
    assert numbers(path, "sugarcrepe_swap_att")["text_score"] == 5 / 6
    with pytest.raises(UsageError, match="do not say which rows of a file are whose"):
        ttmbench.score(path, "paper16")
    better = table(tmp_path / "better.csv", [{**row, "correct": 1} for row in rows])
    assert main(["score", str(better), "--task", "sugarcrepe", "--limit", "6", "-o", str(tmp_path / "y.json")]) == 0
    assert main(["compare", str(target), str(tmp_path / "y.json"), "--metrics", "text_score"]) == 0
    assert "sugarcrepe_swap_obj" in capsys.readouterr().out


def test_the_image_that_each_caption_chose(tmp_path):
    """As the evaluation of MMVP-VLM writes it."""
    chosen, truth = ["12", "11", "22", "21", "12", "12"], {"gt1": "img1", "gt2": "img2", "q1score": 0.6}
    rows = [
        {"qid1": 2 * at + 1, "qid2": 2 * at + 2, "pred1": f"img{one}", "pred2": f"img{two}", **truth}
        for at, (one, two) in enumerate(chosen)
    ]
    path = table(tmp_path / "Prediction_Results_OpenAICLIP", rows)
    assert numbers(path, "mmvp_vlm") == {"image_score": 0.5}
    assert ttmbench.score(path, "mmvp_vlm", limit=6).tasks["mmvp_vlm"].data.groups[1].group_id == "3"
    rows[2]["pred1"] = "A"
    with pytest.raises(DataError, match=r"row 2 has 'A' as pred or gt; expected the chosen image, img1 or img2"):
        numbers(table(path, rows), "mmvp_vlm")


def test_arrays_of_booleans_and_of_candidates(tmp_path):
    right = np.array([1, 0, 1, 1, 0, 1], bool)
    np.save(tmp_path / "a.npy", right)
    np.savez(tmp_path / "b.npz", text_score=right, image_score=~right)
    np.savez(tmp_path / "c.npz", text=np.stack([right, right], 1), image=np.stack([right, ~right], 1))
    np.save(tmp_path / "d.npy", SCORES[:, 0])
    assert numbers(tmp_path / "a.npy", "sugarcrepe_swap_obj")["group_match"] == 4 / 6
    assert numbers(tmp_path / "b.npz") == {"text_score": 4 / 6, "image_score": 2 / 6, "group_score": 0}
    assert numbers(tmp_path / "c.npz")["individual_match"] == 4 / 6
    one_image = ttmbench.score(SCORES[:, :1], "sugarcrepe_swap_obj", limit=6, bootstrap_iters=0).results
    assert ttmbench.score(tmp_path / "d.npy", "sugarcrepe_swap_obj", limit=6, bootstrap_iters=0).results == one_image
    with pytest.raises(DataError, match="results of groups need their task"):
        ttmbench.score(tmp_path / "a.npy")


def array(path: Path, value: np.ndarray) -> Path:
    np.save(path, value)
    return path


WRONG = {
    "no columns": (lambda at: text(at / "x.csv", "a,b\n1,2\n"), "has columns a, b; expected a row a group"),
    "no names": (lambda at: text(at / "x.csv", "True, False, True\n"), "3 columns without names"),
    "not said which": (
        lambda at: text(at / "x.json", [{"correct": 1}]),
        "'correct' does not say which metric of a 2x2",
    ),
    "no truth": (lambda at: text(at / "x.json", [{"text_score": 1}, {"text_score": 0.5}]), "row 1 has text_score 0.5"),
    "contradiction": (
        lambda at: text(at / "x.json", [{"text_score_i0": 1, "text_score_i1": 0, "text_score": True}]),
        "row 0 has text_score True, and by its other columns it is False",
    ),
    "half the questions": (lambda at: text(at / "x.json", [{"text_score_i0": 1}]), "one for each of 2 images"),
    "missing cell": (lambda at: text(at / "x.json", [{"c0_i0": 1, "c1_i1": 2}]), "not one for each image and caption"),
    "no number": (
        lambda at: text(at / "x.json", [{**ROWS[0], "c0_i0": "high"}]),
        "group 0 has a score that is not a number",
    ),
    "not finite": (lambda at: text(at / "x.csv", "c0_i0,c0_i1,c1_i0,c1_i1\n1,2,nan,3\n"), "not a finite number"),
    "other shape": (lambda at: text(at / "x.json", [[[1.0, 2.0]]]), "scores have shape"),
    "twice": (lambda at: text(at / "x.json", [ROWS[0], ROWS[0]]), "row 1 has id '0' again"),
    "other size": (lambda at: text(at / "x.json", ROWS), "has 6 groups, but task 'bivlc'"),
    "ragged": (lambda at: text(at / "x.csv", "text_score,image_score\n1\n"), "line 2 has 1 cells"),
    "empty": (lambda at: text(at / "x.csv", ""), "is empty"),
    "broken": (lambda at: text(at / "x.json", '[{"a": 1}'), "is not JSON"),
    "an object": (lambda at: text(at / "x.json", {"accuracy": 0.4}), "JSON object without groups"),
    "a matrix": (lambda at: array(at / "x.npy", np.ones((4, 3), bool)), "expected booleans"),
}


@pytest.mark.parametrize(("make", "expected"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_named_in_one_line(tmp_path, make, expected):
    path = make(tmp_path)
    with pytest.raises(DataError) as refused:
        ttmbench.score(path, "bivlc", bootstrap_iters=0)
    message = str(refused.value)
    assert expected in message and "\n" not in message and message.startswith(str(path))
