"""Forced choices: answers read, also those that authors released; numbers with their own chance, apart from scores."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from PIL import Image
from support.adapter_inputs import groups_of
from support.documents import schema

import ttmbench
from ttmbench._util.images import side_by_side
from ttmbench.cli import main
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.hookspecs import hookimpl
from ttmbench.model import ChoiceModel, ChoiceStyle
from ttmbench.report.terminal import print_results
from ttmbench.scoring.choice_arrays import Choices, choice_chance, choice_values
from ttmbench.scoring.forced_choice import ask_choices, read_caption_choice, read_image_choice
from ttmbench.scoring.inputs import Inputs
from ttmbench.testing import ContractError, check_adapter
from ttmbench.types import Group, ImageRef

CAPTIONS = ["a red cat on a blue mat", "a blue cat on a red mat"]
QUICK = {"limit": 12, "bootstrap_iters": 20}


class Chooser(ChoiceModel):
    """Answers by a function of prompt and images."""

    def __init__(self, words, **style):
        self.choice_style, self._words, self.seen = ChoiceStyle(**style), words, []

    def fingerprint(self):
        return {"model": "chooser"}

    def answer(self, questions):
        self.seen += [(question.prompt, len(question.images)) for question in questions]
        return [self._words(question.prompt, list(question.images)) for question in questions]


def truth_of(task: str, limit: int = 12) -> dict[bytes, str]:
    """Pixels of each image -> its caption."""
    pairs = [pair for group in groups_of(task, limit) for pair in zip(group.images, group.captions, strict=False)]
    return {image.open().convert("RGB").tobytes(): caption for image, caption in pairs}


def oracle(task: str):
    """Answers every question right, in the words of the options."""
    captions = truth_of(task)

    def words(prompt: str, images: list[Image.Image]) -> str:
        if len(images) == 1:
            options = dict(re.findall(r"\(([A-Z])\) (.*?)(?:, or|, (?=\()|\?)", prompt))
            return next(
                f"({letter})" for letter, caption in options.items() if caption == captions[images[0].tobytes()]
            )
        wanted = re.search(r"the description (.*?)\? The", prompt).group(1)
        place = [captions[image.tobytes()] for image in images].index(wanted)
        return f"The {('first', 'second')[place]} image better aligns with the description."

    return words


ANSWERS = {
    "A": 0,
    "b.": 1,
    "(B)": 1,
    "B) a blue cat on a red mat.": 1,
    "Option A": 0,
    "The image presents option (B), a blue cat on a red mat": 1,
    "The answer is B because the cat is blue.": 1,
    "**A**": 0,
    "Answer: A": 0,
    "The answer is A because of the mat.": 0,
    "The answer is A blue cat on a red mat.": 1,
    "The image shows a red cat on a blue mat.": 0,
    "It is the blue cat and the red mat": None,
    "A red cat, on a blue mat": None,
    "(A) rather than (B)": 0,
    "Both (A) and (B) could be right.": None,
    "Neither.": None,
    "neither (A) nor (B)": None,
    "None of them": None,
    "(B) a red cat on a blue mat": None,
    "I'm sorry, I can't assist with this request.": None,
    "C": None,
    "": None,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_reading_which_caption_was_chosen(answer):
    assert read_caption_choice(answer, CAPTIONS) == ANSWERS[answer]


IMAGES = {
    "The second image better aligns with the description.": 1,
    "First image": 0,
    "second": 1,
    "Image 1": 0,
    "image (2)": 1,
    "Image B": 1,
    "In the image a cat sits on a mat.": None,
    "The second image does not match.": None,
    "(B)": 1,
    "the 2nd one": 1,
    "1": 0,
    "The first image better aligns with it than the second image.": 0,
    "The second image does not match. The first image is the better one.": 0,
    "Neither image fits perfectly, but the second image better aligns than the first image": 1,
    "Neither image aligns with the description.": None,
    "Both images show it.": None,
    "The first image or the second image": None,
    "Image 7": None,
    "I cannot tell.": None,
    "The left image": None,
}


@pytest.mark.parametrize("answer", IMAGES)
def test_reading_which_image_was_chosen(answer):
    assert read_image_choice(answer, 2) == IMAGES[answer]


def test_chance_is_that_of_independent_answers():
    rng = np.random.default_rng(0)
    for images, captions, orders in ((2, 2, 1), (1, 4, 1), (2, 2, 2), (2, 3, 1)):
        text = (rng.integers(captions, size=(200_000, images, orders)) == 0).all(axis=2)
        image = (rng.integers(images, size=(200_000, images, orders)) == 0).all(axis=2) if images > 1 else None
        chance = choice_chance(images, captions, orders)
        for metric, values in choice_values(Choices(text, image)).items():
            assert values.mean() == pytest.approx(chance[metric], abs=0.005), (images, captions, metric)
    with pytest.raises(ValueError, match="a group needs"):
        choice_chance(1, 1)
    assert choice_chance(3, 2, 2) == {"text_score": None, "image_score": 1 / 3**4, "group_score": None}


@pytest.mark.parametrize("order", ["random", "both"])
def test_a_model_that_knows_is_right_everywhere(order):
    model = Chooser(oracle("shapes_color"), order=order)
    results = ttmbench.simple_evaluate(model, "shapes_color", log_samples=False, **QUICK)
    numbers = results.results["shapes_color"]
    assert numbers["text_score,choice"] == numbers["image_score,choice"] == numbers["group_score,choice"] == 1
    assert len(model.seen) == 12 * 4 * (1 if order == "random" else 2)
    chance = results["chance"]["shapes_color"]
    expected = (0.25, 0.25, 0.0625) if order == "random" else (0.0625, 0.0625, 0.0625**2)
    assert (chance["text_score"], chance["image_score"], chance["group_score"]) == expected
    jsonschema.Draft202012Validator(schema("results")).validate(results.document)
    # No number of a forced choice is among those of scores.
    assert {key.rpartition(",")[2] for key in results.results["shapes_color"]} == {"choice"}
    assert set(results["tracks"]["shapes_color"].values()) == {"forced_choice"} == {results["track"]}
    assert results["ties"]["shapes_color"]["text_score,choice"] is None
    assert results.scores == {"shapes_color": {}}
    assert results["model_info"]["capabilities"] == ["ChoiceModel"]


def test_one_image_a_group_is_asked_about_captions_only():
    results = ttmbench.simple_evaluate(Chooser(lambda *_: "A"), "shapes_spatial", **QUICK)
    assert set(results.results["shapes_spatial"]) == {"text_score,choice", "text_score_stderr,choice"}
    assert results["chance"]["shapes_spatial"] == {"text_score": 0.25}
    assert results["choice"]["shapes_spatial"]["asked"] == ["text"]


def test_an_answer_that_depends_on_the_place_alone_gains_nothing():
    def always_first(prompt, images):
        return "(A)" if len(images) == 1 else "The first image."

    settings = {"limit": 150, "bootstrap_iters": 0}
    random_order = ttmbench.simple_evaluate(Chooser(always_first), "shapes_color", **settings).results["shapes_color"]
    for metric, chance in (("text_score", 0.25), ("image_score", 0.25), ("group_score", 0.0625)):
        assert random_order[f"{metric},choice"] == pytest.approx(chance, abs=0.12)
    both = ttmbench.simple_evaluate(Chooser(always_first, order="both"), "shapes_color", **settings)
    assert set(both.results["shapes_color"].values()) == {0.0}


def test_the_order_of_options_is_drawn_by_the_seed_and_the_group_alone():
    groups = groups_of("shapes_color", 12)

    def orders(chosen, seed):
        given = ask_choices(Chooser(lambda *_: "A"), Inputs(chosen), 5, seed)
        return {(chosen[one.asked.group].group_id, one.asked.side, one.asked.subject): one.asked.order for one in given}

    every = orders(groups, 0)
    assert orders(groups[4:7], 0).items() <= every.items()
    assert orders(groups, 1) != every
    assert set(every.values()) == {(0, 1), (1, 0)}


def test_an_answer_that_cannot_be_read_is_wrong_and_listed(tmp_path):
    right = oracle("shapes_color")
    count = iter(range(1000))

    def words(prompt, images):
        number = next(count)
        return None if number == 3 else "Neither." if number == 9 else right(prompt, images)

    results = ttmbench.simple_evaluate(
        Chooser(words), "shapes_color", output_path=str(tmp_path / "x.json"), log_samples=True, **QUICK
    )
    unread = results["choice"]["shapes_color"]["unread"]
    assert [one["answer"] for one in unread] == [None, "Neither."] and unread[0]["question"] == "caption 2"
    (note,) = results["notes"]["shapes_color"]
    assert "2 answers choose no option and count as wrong" in note and "refused" in note and "'Neither.'" in note
    assert results.results["shapes_color"]["group_score,choice"] == pytest.approx(10 / 12)
    lines = [json.loads(line) for line in (tmp_path / "x_samples_shapes_color.jsonl").read_text().splitlines()]
    assert len(lines) == 12 and all(len(line["answers"]) == 4 and line["method"] == "choice" for line in lines)
    assert sum(line["metrics"]["group_score"] for line in lines) == 10
    answers = [one for line in lines for one in line["answers"]]
    assert sum(not one["right"] for one in answers) == 2 and {one["chosen"] for one in answers} == {0, 1, None}


def test_two_images_may_be_joined():
    assert [read_image_choice(f"The {side} image.", 2, side_by_side=True) for side in ("left", "right")] == [0, 1]
    tall, wide = Image.new("RGB", (10, 40), "red"), Image.new("RGB", (40, 20), "blue")
    joined = side_by_side([tall, wide])
    assert (
        joined.size == (90, 40) and joined.getpixel((5, 5)) == (255, 0, 0) and joined.getpixel((60, 39)) == (0, 0, 255)
    )
    model = Chooser(lambda prompt, images: "left" if "Which image" in prompt else "A", side_by_side=True)
    results = ttmbench.simple_evaluate(model, "shapes_color", **QUICK)
    assert {count for _, count in model.seen} == {1}
    assert not results["choice"]["shapes_color"]["unread"] and results["choice"]["shapes_color"]["side_by_side"] is True


def test_what_needs_scores_is_left_out_with_a_note_and_hooks_hear_of_the_rest(tmp_path):
    heard = []

    class Plugin:
        @hookimpl
        def ttmbench_task_scored(self, task, method, results):
            heard.append((task, method, sorted(results)[0]))

    settings = {"methods": "sinkhorn", "save_scores": True, "output_path": str(tmp_path / "x.json"), **QUICK}
    model = Chooser(lambda *_: "A")
    with pytest.raises(UsageError, match="'ttm' cannot be run"):
        ttmbench.simple_evaluate(model, "shapes_color", ttm=True, **QUICK)
    results = ttmbench.simple_evaluate(model, "shapes_color", plugins=[("p", Plugin())], **settings)
    assert heard == [("shapes_color", "choice", "group_score,choice")]
    notes = " ".join(results["notes"]["shapes_color"])
    assert "can be neither matched nor adapted" in notes and "--save_scores wrote none" in notes
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_model_that_loses_answers_is_named():
    class Forgetful(Chooser):
        def answer(self, questions):
            return []

    with pytest.raises(TtmbenchError, match="0 answers to 48 questions"):
        ttmbench.simple_evaluate(Forgetful(None), "shapes_color", **QUICK)


def test_the_contract_of_adapters():
    assert "one answer a question" in check_adapter(Chooser(lambda *_: "A"))
    with pytest.raises(ContractError, match="0 to 5"):
        check_adapter(type("Silent", (Chooser,), {"answer": lambda self, questions: []})(None))


def test_more_captions_than_letters_are_refused():
    group = Group("g", (ImageRef("i", lambda: Image.new("RGB", (2, 2))),), tuple(f"caption {at}" for at in range(11)))
    with pytest.raises(UsageError, match="at most 10 options"):
        ask_choices(Chooser(None), Inputs([group]), 1, 0)


# --- the same through a server -------------------------------------------------------------------------------


def words_by_digest(prompt: str, images: list[bytes]) -> str:
    """The option with the larger digest: the same one for the same question, whatever the order."""
    if prompt.startswith("Does"):
        options = dict(re.findall(r"\(([A-Z])\) (.*?)(?:, or|, (?=\()|\?)", prompt))
        letter = max(options, key=lambda name: hashlib.sha256(options[name].encode() + images[0]).digest())
        return f"({letter}) {options[letter]}"
    place = max(range(len(images)), key=lambda index: hashlib.sha256(prompt.encode() + images[index]).digest())
    return f"The {('first', 'second')[place]} image better aligns with the description."


@pytest.fixture
def evaluate(chat_server, tmp_path):
    """Runs five groups of two tasks; that keys are nowhere is held by test_openai.py."""
    chat_server.words = words_by_digest

    def run(**more):
        asked = {"model": "m", "scorer": "choice", "base_url": chat_server.url, "cache": str(tmp_path / "c.sqlite")}
        how = {"limit": 5, "bootstrap_iters": 20, "model_args": {**asked, **more}}
        return ttmbench.simple_evaluate("openai", "shapes_color,shapes_spatial", **how).document

    return run


def test_forced_choices_through_a_server(chat_server, evaluate, capsys):
    document = evaluate()
    print_results(document)
    printed = capsys.readouterr().out
    assert "choice" in printed and "6.25" in printed, printed
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    assert len(chat_server.requests) == 5 * 4 + 5
    body = chat_server.requests[-1]
    assert "logprobs" not in body and body["max_tokens"] == 100
    assert not document["choice"]["shapes_color"]["unread"]
    parts = [len(body["messages"][0]["content"]) for body in chat_server.requests]
    assert parts.count(3) == 10, "two images and a text"
    assert document["model_info"]["fingerprint"]["order"] == "random"


@pytest.mark.parametrize("fault", ["refusal", "policy"])
def test_a_refusal_chooses_nothing(fault, chat_server, evaluate):
    chat_server.fault = lambda number: fault if number == 2 else None
    document = evaluate(concurrency=1)
    (unread,) = document["choice"]["shapes_color"]["unread"]
    assert unread["answer"] is None
    assert "were refused" in " ".join(document["notes"]["shapes_color"])
    assert len(document["model_info"]["usage"]["refused"]) == 1


SHARED = Path(__file__).resolve().parents[3] / "shared" / "real-scores"


@pytest.fixture
def scored(tmp_path, capsys):
    """The document of per-sample results of forced choices."""

    def score(rows: list[dict], task: str, *words: str) -> dict:
        with (tmp_path / "x.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        target = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        assert main(["score", str(tmp_path / "x.csv"), "--task", task, "--choice", "-o", str(target), *words]) == 0
        document = json.loads(target.read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator(schema("results")).validate(document)
        return document

    return score


LIMIT = ("--limit", "4")


def released(*names: str) -> dict:
    path = SHARED.joinpath(*names)
    if not path.is_file():
        pytest.skip("real answers are not at hand")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("model", "right"), [("gpt4v", (274, 229)), ("llava", (210, 163))])
def test_our_own_reading_differs_from_the_releases_by_one_group(model, right):
    text, image = (released("colorswap_vlm", f"{side}-{model}-colorswap.json") for side in ("text", "image"))

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


def test_stored_answers_give_the_scores_of_their_sides(scored):
    sides = ("text_score", "image_score", "group_score")
    row = {"text_score_i0": 1, "text_score_i1": 1, "image_score_c0": 1}
    document = scored([{**row, "image_score_c1": right} for right in (0, 1, 0, 1)], "colorswap", *LIMIT)
    assert [document["results"]["colorswap"][f"{one},choice"] for one in sides] == [1, 0.5, 0.5]
    assert [document["chance"]["colorswap"][one] for one in sides] == [0.25, 0.25, 0.0625]
    document = scored([{"image_score_c0": 1, "image_score_c1": row % 2} for row in range(4)], "colorswap", *LIMIT)
    assert set(document["tracks"]["colorswap"]) == {"image_score,choice"}
    assert document["choice"]["colorswap"]["asked"] == ["image"]
