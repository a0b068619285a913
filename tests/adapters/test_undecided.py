"""Servers that list few tokens: bounds are as tight as the list allows, and mostly undecided numbers say so."""

from __future__ import annotations

import json
import math

import jsonschema
import numpy as np
import pytest

from ttmbench.cli import main
from ttmbench.model_adapters.openai import LEAST_LEFT, read_yes_no, yes_token
from ttmbench.results.files import schema

PAIRS = 16  # of four 2x2 groups


def test_an_unlisted_side_has_no_more_than_is_left():
    """By hand: 1 - 0.9 - 0.09 is less than the least listed; 1 - 0.5 - 0.001 is more."""
    tight = read_yes_no([("Yes", math.log(0.9)), ("The", math.log(0.09))])
    assert tight.bounded == "no" and math.exp(tight.no) == pytest.approx(0.01)
    loose = read_yes_no([("No", math.log(0.5)), ("The", math.log(0.001))])
    assert loose.bounded == "yes" and math.exp(loose.yes) == pytest.approx(0.001)
    # More than one listed token, and a sum that rounding put above 1: the bound stays a number.
    whole = read_yes_no([("Yes", math.log(0.6)), (" yes", math.log(0.4)), ("Oui", math.log(1e-3))])
    assert whole.no == pytest.approx(math.log(LEAST_LEFT)) and math.isfinite(whole.log_odds)


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_holds_whatever_was_left_out(seed):
    """Of any distribution over tokens, its k most probable: the bound is never below the truth."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(30, 0.3))
    names = ["Yes", "no", *(f"w{index}" for index in range(28))]
    order = np.argsort(-shares)
    listed = [(names[index], math.log(shares[index])) for index in order[: rng.integers(1, 12)] if shares[index] > 0]
    found = read_yes_no(listed)
    if found is not None:
        assert math.exp(found.yes) >= shares[0] * (1 - 1e-9) and math.exp(found.no) >= shares[1] * (1 - 1e-9)


def test_the_one_token_of_t2v_metrics():
    listed = [("yes", math.log(0.6)), ("Yes", math.log(0.3)), ("No", math.log(0.1))]
    assert yes_token(listed) == pytest.approx(0.3) and yes_token(listed[:1]) is None
    assert yes_token([("Yes", -9999.0)]) is None


@pytest.fixture
def evaluate(chat_server, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")

    def run(**arguments):
        given = {"model": "m", "base_url": chat_server.url, "cache": tmp_path / "a.sqlite", **arguments}
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        words = ["--model", "openai", "--model_args", ",".join(f"{name}={value}" for name, value in given.items())]
        words += ["--tasks", "shapes_color", "--limit", "4", "--bootstrap_iters", "0", "-o", str(out), "--log_samples"]
        code = main(words)
        printed = capsys.readouterr()
        samples = (tmp_path / "out_samples_shapes_color.jsonl").read_text().splitlines()
        return (
            code,
            json.loads(out.read_text()),
            printed.out,
            np.array([json.loads(line)["scores"] for line in samples]),
        )

    return run


def without_no(share):
    """Sure of yes; "no" is not listed, and what is left is less than the least listed token."""
    rest = 0.2 * share + 0.01
    return [("Yes", math.log(1 - 1.05 * rest)), ("It", math.log(rest))]


def test_mostly_undecided_numbers_have_an_exit_code_and_are_marked(chat_server, evaluate):
    chat_server.listed = without_no
    code, document, printed, scores = evaluate()
    assert code == 1 and document["status"] == "done", "the numbers are there, and cannot be read as they stand"
    assert document["undecided"] == {"shapes_color": {"pairs": PAIRS, "of": PAIRS}}
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    flat = " ".join(printed.split())
    assert "shapes_color (undecided)" in printed
    assert "undecided: shapes_color: 16 of 16 pairs are undecided" in flat and "score_as=probability" in flat
    rest = 1 / (0.05 * np.exp(scores) + 1.05)  # "no" has what is left, 0.05 of "It", and not as much as "It"
    assert 0.01 < rest.min() and rest.max() < 0.21 and len(np.unique(rest.round(6))) == PAIRS


def test_p_yes_needs_no_no(chat_server, evaluate):
    chat_server.listed = without_no
    code, document, printed, scores = evaluate(score_as="probability")
    assert code == 0 and "undecided" not in document and "undecided" not in printed
    assert not any("bounds" in note for note in document["notes"]["shapes_color"])
    assert 0.7 < scores.min() and scores.max() < 1
    again, _, _, one_token = evaluate(score_as="yes_token")
    assert again == 0 and np.allclose(one_token, scores)


def test_a_few_undecided_pairs_are_counted_and_pass(chat_server, evaluate):
    def listed(share):
        return without_no(share) if share > 0.75 else [("Yes", math.log(share + 0.01)), ("No", math.log(0.2))]

    chat_server.listed = listed
    code, document, printed, _ = evaluate()
    found = document["undecided"]["shapes_color"]
    assert code == 0 and 0 < found["pairs"] <= PAIRS / 2 and found["of"] == PAIRS
    assert "(undecided)" not in printed


def test_silence_counts_too(chat_server, evaluate):
    chat_server.listed = lambda share: [("The", -0.1), ("A", -2.5)]
    code, document, printed, _ = evaluate(on_refusal="wrong")
    assert code == 1 and document["undecided"]["shapes_color"] == {"pairs": PAIRS, "of": PAIRS}
    assert document["results"]["shapes_color"]["group_score,none"] == 0 and "(undecided)" in printed
    code, document, _, scores = evaluate(score_as="yes_token")
    assert code == 1 and (scores == 0).all(), "as published: a token that is not listed has nothing"
