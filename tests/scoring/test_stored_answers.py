"""Stored answers to forced choices: published numbers from published answers, and every wrong file named."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.score_files import read_answers
from ttmbench.results.stored_files import schema
from ttmbench.scoring.forced_choice import read_caption_choice, read_image_choice
from ttmbench.types import GroupShape

SHARED = Path(__file__).resolve().parents[3] / "shared" / "real-scores"
SQUARE, PAIR = GroupShape(2, 2), GroupShape(1, 2)


@pytest.fixture
def released(tmp_path, capsys):
    """Scores files of a folder of real answers, where they are at hand."""

    def score(folder: str, names: list[str], task: str) -> dict:
        paths = [SHARED / folder / name for name in names]
        if not all(path.is_file() for path in paths):
            pytest.skip("real answers are not at hand")
        target = tmp_path / "x.json"
        assert main(["score", *map(str, paths), "--task", task, "-o", str(target)]) == 0
        document = json.loads(target.read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator(schema("results")).validate(document)
        return document

    return score


@pytest.mark.parametrize(("model", "expected"), [("gpt4v", (91.33, 76.33, 72.00)), ("llava", (69.67, 54.33, 42.00))])
@pytest.mark.parametrize("order", [("text", "image"), ("image", "text")])
def test_table_2_of_colorswap(released, model, expected, order):
    document = released("colorswap_vlm", [f"{side}-{model}-colorswap.json" for side in order], "colorswap")
    numbers = document["results"]["colorswap"]
    metrics = ("text_score", "image_score", "group_score")
    assert tuple(round(100 * numbers[f"{metric},choice"], 2) for metric in metrics) == expected
    assert [document["chance"]["colorswap"][metric] for metric in metrics] == [0.25, 0.25, 0.0625]
    assert document["datasets"]["colorswap"]["n_groups"] == 300


@pytest.mark.parametrize(("model", "right"), [("gpt4v", (274, 229)), ("llava", (210, 163))])
def test_our_own_reading_differs_from_the_releases_by_one_group(model, right):
    folder = SHARED / "colorswap_vlm"
    if not folder.is_dir():
        pytest.skip("real answers are not at hand")
    text, image = (json.loads((folder / f"{side}-{model}-colorswap.json").read_text()) for side in ("text", "image"))

    def caption(entry, number):
        log = entry[f"log_{number}"]
        chosen = read_caption_choice(entry[f"response_image_{number}"], [log["caption_1"], log["caption_2"]])
        return chosen == ["A", "B"].index(log["correct_answer"])

    def chosen_image(entry, number):
        chosen = read_image_choice(entry[f"response_caption_{number}"], 2)
        return chosen == ["first", "second"].index(entry[f"log_{number}"]["correct_answer"])

    found = [
        sum(is_right(entry, 1) and is_right(entry, 2) for entry in entries)
        for is_right, entries in ((caption, text), (chosen_image, image))
    ]
    assert tuple(found) == right


def test_one_side_alone_gives_its_score(released):
    document = released("colorswap_vlm", ["image-gpt4v-colorswap.json"], "colorswap")
    assert set(document["tracks"]["colorswap"]) == {"image_score,choice"}
    assert document["choice"]["colorswap"]["asked"] == ["image"]


RIGHT = {
    ("swap_obj", "positive"): (211, 246),
    ("swap_obj", "negative"): (198, 246),
    ("swap_att", "positive"): (607, 666),
    ("swap_att", "negative"): (593, 666),
}


@pytest.mark.parametrize(("subset", "first"), RIGHT)
def test_gpt4v_on_sugarcrepe(released, subset, first):
    task = f"sugarcrepe_{subset}"
    document = released(f"sugarcrepe_gpt4v/{first}-first", [f"gpt4v-{subset}.json"], task)
    right, total = RIGHT[subset, first]
    assert document["results"][task]["text_score,choice"] == pytest.approx(right / total)
    assert document["datasets"][task]["n_groups"] == total and document["chance"][task] == {"text_score": 0.5}
    notes = " ".join(document["notes"][task])
    assert ("the task has 245" in notes) == (total == 246)
    assert ("the key 'accuracy'" in notes) == ((subset, first) == ("swap_obj", "positive"))


# --- made files ----------------------------------------------------------------------------------------------


def colorswap(side: str, answers: list[tuple[str, str]], start: int = 1) -> list[dict]:
    """Entries of which the right options are B and A (text), second and first (image)."""
    subject, right = ("image", ("B", "A")) if side == "text" else ("caption", ("second", "first"))
    entries = []
    for index, pair in enumerate(answers):
        entry: dict = {"id": start + index}
        for number in (1, 2):
            captions = {"caption_1": "a red cat", "caption_2": "a blue cat"} if side == "text" else {"caption": "a cat"}
            entry[f"response_{subject}_{number}"] = pair[number - 1]
            entry[f"log_{number}"] = {**captions, "correct_answer": right[number - 1]}
        entries.append(entry)
    return entries


def item(chosen: str, **more) -> dict:
    answer = {"free_form_answer": "(1)", "multiple_choice_answer": chosen}
    return {"answer": answer, "caption": "yes", "negative_caption": "no", "filename": "0.jpg", **more}


@pytest.fixture
def file(tmp_path):
    def write(name: str, content) -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def test_the_right_option_is_what_the_log_says(file):
    answers = [("(B) a blue cat", "A"), ("A", "A"), ("B", "B"), ("The image presents a blue cat.", "(A)")]
    stored = read_answers([file("t.json", colorswap("text", answers))], SQUARE)
    assert stored.choices.text.tolist() == [[True, True], [False, True], [True, False], [True, True]]
    assert stored.choices.image is None and stored.group_ids == ["1", "2", "3", "4"] and not stored.unread


def test_two_files_are_joined_by_group_id(file):
    text = colorswap("text", [("B", "A"), ("A", "A")])
    image = colorswap("image", [("The second image.", "The first image."), ("Neither.", "The first image.")])
    stored = read_answers([file("i.json", image[::-1]), file("t.json", text)], SQUARE)
    rows = zip(stored.group_ids, stored.choices.text.tolist(), stored.choices.image.tolist(), strict=True)
    assert sorted(rows) == [("1", [True, True], [True, True]), ("2", [False, True], [False, True])]
    assert stored.unread == [("2", "caption 1", "Neither.")]


def test_what_sugarcrepe_stores(file):
    content = {"0": item("yes"), "1": item("no"), "7": item(""), "accuracy": 0.3, "9": item("yes", correct=False)}
    stored = read_answers([file("s.json", content)], PAIR)
    assert stored.choices.text.tolist() == [[True], [False], [False], [True]]
    assert stored.group_ids == ["0", "1", "7", "9"] and [group for group, _, _ in stored.unread] == ["7"]
    assert len(stored.notes) == 3 and "1 items" in stored.notes[1] and "9" in stored.notes[1]


def test_answers_are_told_from_scores_by_content(file):
    assert read_answers([file("a", colorswap("text", [("A", "B")]))], SQUARE) is not None
    others = ('{"label": "0_c0_i0", "score": 1}\n', "", "[", "[1, 2]", "[]", "{}", '{"a": 1}', "PK")
    for at, content in enumerate(others):
        assert read_answers([file(f"o{at}", content)], SQUARE) is None, content
    assert read_answers([file("a", "x").with_name("absent")], SQUARE) is None


def test_wrong_files_are_named(file):
    text = colorswap("text", [("A", "B"), ("A", "B")])
    image = colorswap("image", [("first", "second")], start=2)
    no_log, twice, silent = json.loads(json.dumps([text] * 3))
    del no_log[1]["log_2"]["correct_answer"]
    twice[1]["id"] = 1
    del silent[0]["response_image_2"]
    path, other = file("t.json", text), file("i.json", image)
    wrong = [
        ([path], PAIR, DataError, "2x2 groups, the task has 1x2"),
        ([file("s.json", {"0": item("yes")})], SQUARE, DataError, "1x2 groups, the task has 2x2"),
        ([file("b.json", {"0": {**item("yes"), "answer": "yes"}})], PAIR, DataError, "item 0 has no answer"),
        ([path, other], SQUARE, DataError, "group 1 is not in both files"),
        ([path, path], SQUARE, UsageError, "both files hold answers to the text questions"),
        ([path, file("s.json", {"0": item("yes")})], SQUARE, UsageError, "several files are read together only"),
        ([path, other, other], SQUARE, UsageError, "several files"),
        ([file("n.json", no_log)], SQUARE, DataError, "group 2 has no usable log_2"),
        ([file("w.json", twice)], SQUARE, DataError, "duplicate group id 1"),
        ([file("q.json", silent)], SQUARE, DataError, "group 1 has no answer response_image_2"),
        ([file("k.json", {"0": item("yes"), "1": {"caption": "x"}})], PAIR, DataError, "item 1 has no answer"),
    ]
    for paths, shape, kind, says in wrong:
        with pytest.raises(kind) as caught:
            read_answers(paths, shape)
        assert says in str(caught.value) and "\n" not in str(caught.value), says


def test_answers_are_of_one_task(file, capsys):
    assert main(["score", str(file("a.json", {"0": item("yes")})), "--task", "sugarcrepe"]) == 2
    assert "names several; use one of sugarcrepe_add_att, " in capsys.readouterr().err
    assert main(["score", "none.csv", "--task", "winoground"]) == 4
    assert "none.csv: cannot be read (No such file or directory)" in capsys.readouterr().err


def test_sizes_are_held_to_the_task(file, capsys):
    path = str(file("t.json", colorswap("text", [("B", "A")] * 3)))
    assert main(["score", path, "--task", "colorswap"]) == 4
    assert "has 3 groups, but task 'colorswap'" in capsys.readouterr().err
    assert main(["score", path, "--task", "colorswap", "--limit", "3"]) == 0
    assert "100.00" in capsys.readouterr().out
