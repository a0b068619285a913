"""Answers to forced choices that authors released, as per-sample results: they give the published numbers."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from ttmbench.cli import main
from ttmbench.results.stored_files import schema
from ttmbench.scoring.forced_choice import read_caption_choice, read_image_choice

SHARED = Path(__file__).resolve().parents[3] / "shared" / "real-scores"
_FUNCTION_WORDS = (" a ", " an ", " the ", " with ", " and ")
_ARTICLES = ("a ", "an ", "the ")
# Where a letter follows one of these, the answer is read as that option, whatever else it says.
_INTRODUCTIONS = (
    r"image presents \({0}\)",
    r"image presents option \({0}\)",
    r"image presents option {0}",
    r"it would imply \({0}\)",
    r"it could metaphorically represent \({0}\)",
    r"it is \({0}\)",
)


def colorswap_choice(answer: str, captions: Sequence[str] = ()) -> int | None:
    """Which of two captions, (A) or (B), an answer chooses, or without captions, which of two images; None for neither.

    None also for both. These are the rules of ColorSwap's release.
    """
    low, chosen = answer.lower(), list[bool]()
    bare, *options = map(_without_function_words, (answer, *captions))
    for this, other in ((0, 1), (1, 0)):
        if not captions:
            word = ("first", "second")[this]
            preferred = rf"{word} image (?:better aligns|aligns better)|the {word} image is more relevant"
            chosen.append((word in low and ("first", "second")[other] not in low) or bool(re.search(preferred, low)))
            continue
        caption, letter = captions[this].lower(), "ab"[this]
        capital = letter.upper()
        chosen.append(
            (caption in low and (captions[other].lower() not in low or f"this image presents {caption}" in low))
            or answer == capital
            or re.match(rf"\(?{capital}\)|Option \(?{capital}", answer) is not None
            or any(re.search(phrase.format(letter), low) for phrase in _INTRODUCTIONS)
            # "option (a)" as well as "option a", which also begins words such as "option another": as released.
            or (re.search(rf"option \(?{letter}", low) is not None and f"{'ab'[other]})" not in low)
            or (options[this] in bare and options[other] not in bare)
        )
    return None if chosen[0] == chosen[1] else int(chosen[1])


def _without_function_words(text: str) -> str:
    for word in _FUNCTION_WORDS:
        text = text.replace(word, " ")
    for article in _ARTICLES:
        text = text.removeprefix(article)
    return text.lower()


@pytest.fixture
def scored(tmp_path, capsys):
    """The document of per-sample results of forced choices."""

    def score(rows: list[dict], task: str, *words: str) -> dict:
        with (tmp_path / "x.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        target = tmp_path / "x.json"
        assert main(["score", str(tmp_path / "x.csv"), "--task", task, "--choice", "-o", str(target), *words]) == 0
        document = json.loads(target.read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator(schema("results")).validate(document)
        return document

    return score


def released(*names: str) -> dict:
    path = SHARED.joinpath(*names)
    if not path.is_file():
        pytest.skip("real answers are not at hand")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("model", "expected"), [("gpt4v", (91.33, 76.33, 72.00)), ("llava", (69.67, 54.33, 42.00))])
def test_table_2_of_colorswap(scored, model, expected):
    rows: dict[str, dict] = {}
    for side, shown, right in (("text", "image", ("A", "B")), ("image", "caption", ("first", "second"))):
        for entry in released("colorswap_vlm", f"{side}-{model}-colorswap.json"):
            row = rows.setdefault(entry["id"], {"group_id": entry["id"]})
            for number in (1, 2):
                log = entry[f"log_{number}"]
                captions = (log["caption_1"], log["caption_2"]) if side == "text" else ()
                chosen = colorswap_choice(str(entry.get(f"response_{shown}_{number}") or ""), captions)
                row[f"{side}_score_{shown[0]}{number - 1}"] = int(chosen == right.index(log["correct_answer"]))
    document = scored(list(rows.values()), "colorswap")
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


RIGHT = {
    ("swap_obj", "positive"): (211, 246),
    ("swap_obj", "negative"): (198, 246),
    ("swap_att", "positive"): (607, 666),
    ("swap_att", "negative"): (593, 666),
}


@pytest.mark.parametrize(("subset", "first"), RIGHT)
def test_gpt4v_on_sugarcrepe(scored, subset, first):
    task, items = f"sugarcrepe_{subset}", released("sugarcrepe_gpt4v", f"{first}-first", f"gpt4v-{subset}.json")
    answered = {key: item for key, item in items.items() if isinstance(item, dict)}
    chosen = {key: str(item["answer"]["multiple_choice_answer"]).strip() for key, item in answered.items()}
    rows = [{"group_id": key, "correct": int(chosen[key] == item["caption"].strip())} for key, item in answered.items()]
    document = scored(rows, task)
    right, total = RIGHT[subset, first]
    assert document["results"][task]["text_score,choice"] == pytest.approx(right / total)
    assert document["datasets"][task]["n_groups"] == total and document["chance"][task] == {"text_score": 0.5}
    assert ("the task has 245" in " ".join(document["notes"][task])) == (total == 246)


def test_one_side_alone_gives_its_score(scored):
    rows = [{"image_score_c0": 1, "image_score_c1": row % 2} for row in range(4)]
    document = scored(rows, "colorswap", "--limit", "4")
    assert set(document["tracks"]["colorswap"]) == {"image_score,choice"}
    assert document["choice"]["colorswap"]["asked"] == ["image"]


def test_a_missing_file_is_named(capsys):
    assert main(["score", "none.csv", "--task", "winoground"]) == 4
    assert "none.csv: cannot be read (No such file or directory)" in capsys.readouterr().err
