"""Models behind a server: whatever goes wrong, the numbers are those of a quiet run and nothing is paid for twice."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import signal
import sqlite3

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.chat_server import ChatServer
from support.documents import schema

from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.model_adapters.openai import LEAST_LEFT, load, read_yes_no
from ttmbench.testing import check_adapter

SECRET = "sk-veryveryverysecret0123456789"
N_PAIRS = 12  # of three 2x2 groups


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def words_of(folder, task="shapes_color", cache="answers.sqlite", limit=3, **arguments) -> list[str]:
    """The public command on three groups; the document is `out.json`."""
    arguments = {"model": "test-model", "timeout": 60, **arguments, "cache": folder / cache}
    given = ",".join(f"{name}={value}" for name, value in arguments.items())
    words = ["--model", "openai", "--model_args", given, "--tasks", task, "--limit", str(limit), "--log_samples"]
    return [*words, "--bootstrap_iters", "20", "-o", str(folder / "out.json")]


def numbers(folder) -> tuple[dict, list]:
    """The results of a run, and the score of every pair."""
    lines = (folder / "out_samples_shapes_color.jsonl").read_text(encoding="utf-8").splitlines()
    results = json.loads((folder / "out.json").read_text(encoding="utf-8"))["results"]
    return results, [json.loads(line)["scores"] for line in lines]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """The numbers when nothing goes wrong: what the server answers depends on the question alone."""
    server, folder = ChatServer(), tmp_path_factory.mktemp("quiet")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OPENAI_API_KEY", SECRET)
        assert main(words_of(folder, base_url=server.url)) == 0
    server.stop()
    return numbers(folder)


@pytest.fixture
def evaluate(chat_server, tmp_path, capsys):
    """Runs the public command on three groups; everything it writes lies below one folder."""

    def run(*more: str, **arguments) -> tuple[int, dict, str]:
        target = tmp_path / "out.json"
        target.unlink(missing_ok=True)
        code = main([*words_of(tmp_path, **{"base_url": chat_server.url, **arguments}), *more])
        printed = capsys.readouterr()
        document = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
        for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
            assert SECRET.encode() not in path.read_bytes()
        assert SECRET not in printed.out + printed.err
        return code, document, printed.out + printed.err

    return run


def asked_once(server) -> bool:
    return set(server.answered.values()) == {1}


def test_a_quiet_run(chat_server, evaluate):
    code, document, printed = evaluate("--verbosity", "debug")
    assert code == 0, printed
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    assert len(chat_server.requests) == N_PAIRS and asked_once(chat_server)
    assert chat_server.authorizations == {f"Bearer {SECRET}"}
    assert "12 of 12 questions to ask" in printed
    body = chat_server.requests[0]
    assert body["max_tokens"] == 1 and body["logprobs"] is True and body["top_logprobs"] == 20
    assert body["temperature"] == 0 and body["model"] == "test-model"
    text = body["messages"][0]["content"][-1]["text"]
    assert text.startswith('Does this figure show "') and text.endswith('"? Please answer yes or no.')
    assert document["track"] == "matching" and document["model_name"] == "test-model"
    usage = document["model_info"]["usage"]
    assert usage["answers"] == N_PAIRS and usage["prompt_tokens"] == 300 * N_PAIRS and usage["cost"] is None
    assert usage["served"] == ["test-model-served"] and usage["refused"] == []
    declared = document["model_info"]["fingerprint"]
    assert declared["pictures"]["longest_side"] == 512 and declared["pictures"]["format"] == "jpeg"
    assert declared["server"] == "127.0.0.1/v1"


def test_the_scores_are_log_odds_of_summed_probabilities(chat_server, evaluate, tmp_path):
    evaluate()
    results, scores = numbers(tmp_path)
    scores = np.array(scores)
    assert np.isfinite(scores).all() and np.abs(scores).max() <= math.log(0.95 / 0.05) + 1e-5
    assert len(np.unique(scores.round(5))) == N_PAIRS
    evaluate(score_as="probability")
    assert len(chat_server.requests) == N_PAIRS, "the same answers serve both"
    again, probabilities = numbers(tmp_path)
    assert np.allclose(probabilities, 1 / (1 + np.exp(-scores)), atol=1e-6)
    assert again["shapes_color"]["text_score,none"] == results["shapes_color"]["text_score,none"]


FAULTS = {
    "429 with Retry-After": ("429", {}),
    "503": ("503", {}),
    "dropped connection": ("drop", {}),
    "slow reply": ("slow", {"timeout": 3}),
    "malformed JSON": ("malformed", {}),
    "another kind of answer": ("strange", {}),
    "no log-probabilities once": ("no logprobs", {}),
    "another name of max_tokens": ("other name", {}),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_passes_changes_no_number_and_asks_nothing_twice(case, chat_server, evaluate, quiet, tmp_path):
    fault, arguments = FAULTS[case]
    faulty = (0,) if fault == "slow" else (0, 3, 4)
    chat_server.fault = lambda number: fault if number in faulty else None
    code, document, printed = evaluate(concurrency=4, **arguments)
    assert code == 0, printed
    assert numbers(tmp_path) == quiet
    answered = dict(chat_server.answered)
    if fault == "no logprobs":  # what came is useless; it is asked for again, and not kept
        assert sum(answered.values()) == N_PAIRS + 3
    else:
        assert len(answered) == N_PAIRS and asked_once(chat_server)
    assert document["model_info"]["usage"]["requests"] == len(chat_server.requests) > N_PAIRS
    code, again, _ = evaluate()
    assert code == 0 and numbers(tmp_path) == quiet and dict(chat_server.answered) == answered
    assert again["model_info"]["usage"]["requests"] == 0


@pytest.mark.parametrize(
    ("fault", "code", "says"), [("404", 2, "model=test-model and base_url"), ("400", 1, "says 400")]
)
def test_what_will_not_pass_is_said_at_once(fault, code, says, chat_server, evaluate):
    chat_server.fault = lambda number: fault if number >= 6 else None
    found, _, printed = evaluate(concurrency=1)
    assert found == code and says in printed and len(chat_server.requests) == 7
    chat_server.fault = lambda number: None
    assert evaluate()[0] == 0 and asked_once(chat_server)


@pytest.mark.parametrize(
    ("fault", "code", "says", "requests"),
    [
        ("deep", 4, "is not what a chat-completions server gives", 3),
        ("quota", 4, "has no credit left", 2),
        ("key", 4, "api_key_env names its variable", 1),
        ("no logprobs", 2, "scorer=choice", 2),
        ("no such parameter", 2, "scorer=choice", 1),
    ],
)
def test_the_first_question_goes_alone(fault, code, says, requests, chat_server, evaluate):
    chat_server.fault = lambda number: fault
    found, document, printed = evaluate(retries=1)
    assert found == code and says in " ".join(printed.split()) and document["status"] == "failed"
    assert len(chat_server.requests) == requests


BAD = {
    **{"NaN": "gives nan as", "infinite": "gives inf as", "above 0": "gives 0.7 as", "false": "gives false as"},
    **{"text": 'gives "-0.5" as', "sum above 1": "add up to 1.7236", "null": "finish_reason: length"},
}


@pytest.mark.parametrize("fault", BAD)
def test_an_unusable_answer_is_asked_for_thrice_and_not_kept(fault, chat_server, evaluate):
    chat_server.fault = lambda number: fault if number >= 6 else None
    code, document, printed = evaluate(concurrency=1)
    assert code == 4 and BAD[fault] in printed and "Traceback" not in printed
    assert len(chat_server.requests) == 9 and document["status"] == "failed"
    chat_server.fault = lambda number: None
    code, document, _ = evaluate()
    assert code == 0 and document["model_info"]["usage"]["stored_answers"] == 6 and asked_once(chat_server)


def test_a_server_that_answers_as_several_models_gets_a_note_that_names_them(chat_server, evaluate):
    chat_server.names = lambda number: ("model-a", "model-b")[number % 2]
    code, document, printed = evaluate(concurrency=1)
    note = "of no single model: 'model-a'; 'model-b'"
    assert code == 0 and note in " ".join(document["notes"]["shapes_color"]) and note in " ".join(printed.split())


def test_a_server_that_lists_fewer_tokens_says_how_many(chat_server, evaluate):
    chat_server.lists_at_most = 5
    code, _, printed = evaluate()
    assert code == 2 and "max allowed: 5" in printed and "top_logprobs=5" in printed and len(chat_server.requests) == 1
    assert evaluate(top_logprobs=5)[0] == 0


def test_azure_has_its_version_in_the_address_and_the_key_in_a_header_of_its_own(chat_server, evaluate):
    code, document, printed = evaluate(base_url=f"{chat_server.url}/openai/deployments/mine", api_version="2024-10-21")
    assert code == 0, printed
    assert chat_server.paths == {"/v1/openai/deployments/mine/chat/completions?api-version=2024-10-21"}
    assert chat_server.api_keys == {SECRET} and chat_server.authorizations == {None}
    declared = document["model_info"]["fingerprint"]
    assert declared["api_version"] == "2024-10-21" and declared["server"] == "127.0.0.1/v1/openai/deployments/mine"


def test_a_key_in_place_of_its_variable_is_not_shown(chat_server, evaluate, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    code, *_ = evaluate("--verbosity", "debug", api_key_env=SECRET)  # looks into every file and what is printed
    assert code == 2 and not chat_server.requests


@pytest.mark.parametrize(("status", "code"), [("200", 0), ("400", 1), ("401", 4), ("404", 2), ("500", 4)])
def test_a_key_that_the_server_says_back_is_nowhere(status, code, chat_server, evaluate):
    chat_server.fault = lambda number: f"echo {status}"
    options = ("--verbosity", "debug", "--save_scores")
    found, _, printed = evaluate(*options, limit=2, retries=1, scorer="choice")
    assert found == code and ("<redacted>" in printed or code == 0), printed


def test_a_short_key_is_a_word_that_answers_may_hold(chat_server, evaluate, quiet, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL", "yes")
    code, _, _ = evaluate(api_key_env="LOCAL")
    assert code == 0 and numbers(tmp_path) == quiet


def test_a_server_that_dies_half_way_costs_nothing(chat_server, evaluate, quiet, tmp_path):
    chat_server.fault = lambda number: "drop" if number >= 5 else None
    code, document, printed = evaluate(concurrency=2, retries=2)
    assert code == 4 and "did not answer in 3 tries" in printed and "Answers so far are stored" in printed
    assert document["status"] == "failed" and document["errors"][0]["type"] == "DataError"
    first = dict(chat_server.answered)
    assert 0 < len(first) < N_PAIRS
    chat_server.stop()
    chat_server.restart()
    code, document, printed = evaluate(concurrency=2, retries=2)
    assert code == 0, printed
    assert numbers(tmp_path) == quiet and asked_once(chat_server)
    assert len(chat_server.answered) == N_PAIRS
    assert f"{N_PAIRS - len(first)} of {N_PAIRS} questions to ask" in printed
    assert document["model_info"]["usage"]["stored_answers"] == len(first)


def test_an_interrupt_keeps_what_was_answered(chat_server, evaluate, quiet, tmp_path):
    chat_server.delay = 0.05
    chat_server.before = lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 5 else None
    code, document, printed = evaluate(concurrency=3)
    assert code == 130 and "interrupted" in printed and document["status"] == "interrupted"
    kept = len(chat_server.answered)
    assert 5 <= kept < N_PAIRS, "those underway were waited for"
    chat_server.before = lambda number: None
    code, document, printed = evaluate(concurrency=3)
    assert code == 0 and numbers(tmp_path) == quiet
    assert asked_once(chat_server) and len(chat_server.answered) == N_PAIRS
    assert f"{N_PAIRS - kept} of {N_PAIRS} questions to ask" in printed


@pytest.mark.parametrize("fault", ["refusal", "policy"])
def test_a_refusal_fails_and_names_the_groups_unless_it_is_to_count_as_wrong(fault, chat_server, evaluate, quiet):
    chat_server.fault = lambda number: fault if number == 7 else None
    code, document, printed = evaluate(concurrency=1)
    assert code == 1 and "no score for a pair of 1 of 3 groups" in printed and "on_refusal=wrong" in printed
    refused = document["model_info"]["usage"]["refused"]
    assert len(refused) == 1 and refused[0]["prompt"].startswith("Does this figure show")
    before = len(chat_server.requests)
    code, document, printed = evaluate(on_refusal="wrong")
    assert code == 0 and len(chat_server.requests) == before, "a refusal is an answer, and kept"
    notes = " ".join(document["notes"]["shapes_color"])
    assert "1 of 3 groups have a pair without a score and count as wrong" in notes and "were refused" in notes
    assert document["ties"]["shapes_color"]["group_match,none"] >= 1
    for key, value in document["results"]["shapes_color"].items():
        if "stderr" not in key:
            assert value <= quiet[0]["shapes_color"][key] + 1e-9, key


def test_costs_are_the_servers_count(chat_server, evaluate):
    chat_server.usage = {"prompt_tokens": 1000, "completion_tokens": 10}
    _, document, printed = evaluate(price_in=2, price_out=8)
    usage = document["model_info"]["usage"]
    assert usage["cost"] == pytest.approx(N_PAIRS * (1000 * 2 + 10 * 8) / 1e6)
    assert "estimated cost $" in printed
    assert "cost $0.025" in " ".join(document["notes"]["shapes_color"])
    _, document, _ = evaluate(price_in=2, price_out=8)
    assert document["model_info"]["usage"]["cost"] == 0
    assert document["model_info"]["usage"]["stored_cost"] == pytest.approx(usage["cost"])


@pytest.mark.parametrize("concurrency", [1, 5])
def test_max_cost_stops_with_what_there_is(concurrency, chat_server, evaluate, quiet, tmp_path):
    chat_server.delay = 0.01
    chat_server.usage = {"prompt_tokens": 1000, "completion_tokens": 0}
    given = {"price_in": 1000, "price_out": 0, "concurrency": concurrency}  # one unit a question
    code, document, printed = evaluate(max_cost=5.5, **given)
    assert code == 1 and "stopped before max_cost=5.5" in printed and "a rerun with a higher max_cost" in printed
    assert document["model_info"]["usage"]["cost"] <= 5.5 and len(chat_server.answered) == 5
    code, document, printed = evaluate(max_cost=100, **given)
    assert code == 0 and numbers(tmp_path) == quiet and asked_once(chat_server)
    assert len(chat_server.requests) == N_PAIRS
    assert document["model_info"]["usage"]["cost"] == pytest.approx(7)


def test_what_changes_an_answer_is_asked_anew(chat_server, evaluate):
    named = ({}, {"model": "other"}, {"image_size": 16}, {"image_format": "png"}, {"temperature": 1}, {"detail": "low"})
    for changes in named:
        chat_server.forget()
        evaluate(limit=1, **changes)
        assert len(chat_server.requests) == 4, changes
        url = chat_server.requests[0]["messages"][0]["content"][0]["image_url"]["url"]
        form = changes.get("image_format", "jpeg")
        image = Image.open(io.BytesIO(base64.b64decode(url.removeprefix(f"data:image/{form};base64,"))))
        assert image.format == form.upper() and max(image.size) == changes.get("image_size", max(image.size))
    chat_server.forget()
    evaluate(limit=2)
    assert len(chat_server.requests) == 4, "only the group that is new"


def test_offline_uses_stored_answers_alone(chat_server, evaluate, monkeypatch):
    code, _, printed = evaluate("--offline")
    assert code == 4 and "12 of 12 answers are not stored" in printed and not chat_server.requests
    monkeypatch.delenv("OPENAI_API_KEY")
    assert evaluate()[0] == 0 and chat_server.authorizations == chat_server.api_keys == {None}, "one's own needs no key"
    chat_server.forget()
    code, document, _ = evaluate("--offline")
    assert code == 0 and not chat_server.requests and document["model_info"]["usage"]["stored_answers"] == N_PAIRS


def test_wrong_arguments_are_named_and_right_ones_keep_the_contract(chat_server, monkeypatch, tmp_path):
    base = {"model": "m", "base_url": chat_server.url, "cache": str(tmp_path / "c.sqlite")}
    wrong = {
        "'scorer'": {"scorer": "clip"},
        "on_refusal is for": {"on_refusal": "wrong", "scorer": "choice"},
        "max_cost needs": {"max_cost": 3},
        "base_url must begin": {"base_url": "localhost:8000"},
        "base_url must .* name": {"base_url": "http://"},
        "query .*: give base_url=http://x/v1": {"base_url": "http://x/v1?api-version=1"},
        "takes neither a query": {"base_url": "http://x/v1#part"},
        "give base_url=http://x/v1": {"base_url": "http://x/v1/chat/completions/"},
        "'timeout'": {"timeout": math.nan},
        "has no NOT_SET": {"api_key_env": "NOT_SET"},
    }
    for says, arguments in wrong.items():
        with pytest.raises(UsageError, match=says):
            load(**{**base, **arguments})
    assert "order changes no pair score" in check_adapter(load(**base))
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UsageError, match="has no OPENAI_API_KEY"):
        load(model="m")


@pytest.mark.parametrize("damage", ["another answer", "no JSON"])
def test_a_damaged_answer_is_asked_for_again(chat_server, evaluate, tmp_path, damage):
    _, first, _ = evaluate()
    with sqlite3.connect(tmp_path / "answers.sqlite") as rows:
        key, answer = rows.execute("SELECT key, answer FROM answers ORDER BY key LIMIT 1").fetchone()
        changed = answer.replace("0.", "1.", 1) if damage == "another answer" else answer[:-3]
        rows.execute("UPDATE answers SET answer = ? WHERE key = ?", (changed, key))
        assert changed != answer
    rows.close()
    code, again, printed = evaluate()
    assert code == 0 and again["results"] == first["results"]
    assert len(chat_server.requests) == N_PAIRS + 1 and "match their digest; they are asked for again" in printed


def test_yes_and_no_are_read_from_what_is_listed():
    """By hand: 1 - 0.9 - 0.09 is less than the least listed; 1 - 0.5 - 0.001 is more."""
    quarter = math.log(0.25)
    both = read_yes_no([("Yes", quarter), ("YES", quarter), ("\u2581yes", quarter), (" no\n", quarter)])
    assert both.log_odds == pytest.approx(math.log(3)) and both.bounded is None
    assert read_yes_no([("\u0120No", -0.1), ("Maybe", -7.0)]).log_odds == pytest.approx(-7.0 + 0.1)
    assert read_yes_no([("Yesterday", -0.1), ("None", -0.2)]) is read_yes_no([]) is None
    assert read_yes_no([("Yes", -9999.0), ("no", -0.1)]).bounded == "yes"
    assert read_yes_no([("Yes", -math.inf), ("no", math.nan)]) is None
    tight = read_yes_no([("Yes", math.log(0.9)), ("The", math.log(0.09))])
    assert tight.bounded == "no" and math.exp(tight.no) == pytest.approx(0.01)
    loose = read_yes_no([("No", math.log(0.5)), ("The", math.log(0.001))])
    assert loose.bounded == "yes" and math.exp(loose.yes) == pytest.approx(0.001)
    # More than one listed token, and a sum that rounding put above 1: the bound stays a number.
    whole = read_yes_no([("Yes", math.log(0.6)), (" yes", math.log(0.4)), ("Oui", math.log(1e-3))])
    assert whole.no == pytest.approx(math.log(LEAST_LEFT)) and math.isfinite(whole.log_odds)


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_the_bound_holds_whatever_was_left_out(seed, k):
    """Of any distribution over tokens, its k most probable: the bound is never below the truth."""
    shares = np.random.default_rng(seed).dirichlet(np.full(30, 0.3))
    names = ["Yes", "no", *map(str, range(28))]
    found = read_yes_no([(names[at], math.log(shares[at])) for at in np.argsort(-shares)[:k] if shares[at] > 0])
    if found is not None:
        assert math.exp(found.yes) >= shares[0] * (1 - 1e-9) and math.exp(found.no) >= shares[1] * (1 - 1e-9)


def without_no(share):
    """Sure of yes; "no" is not listed, and what is left is less than the least listed token."""
    rest = 0.2 * share + 0.01
    return [("Yes", math.log(1 - 1.05 * rest)), ("It", math.log(rest))]


def test_mostly_undecided_numbers_have_an_exit_code_and_are_marked(chat_server, evaluate, tmp_path):
    chat_server.listed = without_no
    code, document, printed = evaluate()
    scores = np.array(numbers(tmp_path)[1])
    assert code == 1 and document["status"] == "done", "the numbers are there, and cannot be read as they stand"
    found = document["undecided"]["shapes_color"]
    assert (found["pairs"], found["of"]) == (N_PAIRS, N_PAIRS) and 0.7 < found["mass"] < 1 and "instead" not in found
    flat = " ".join(printed.split())
    assert "groups, undecided" in printed
    assert f"'no' in {N_PAIRS} pairs" in " ".join(document["notes"]["shapes_color"]), "scores are bounds"
    assert "undecided: shapes_color: 12 of 12 pairs;" in flat and "score_as=probability" in flat
    rest = 1 / (0.05 * np.exp(scores) + 1.05)  # "no" has what is left, 0.05 of "It", and not as much as "It"
    assert 0.01 < rest.min() and rest.max() < 0.21 and len(np.unique(rest.round(6))) == N_PAIRS


def test_p_yes_needs_no_no(chat_server, evaluate, tmp_path):
    chat_server.listed = without_no
    code, document, printed = evaluate(score_as="probability")
    scores = np.array(numbers(tmp_path)[1])
    assert code == 0 and document["undecided"]["shapes_color"]["pairs"] == 0 and "undecided" not in printed
    assert not any("bounds" in note for note in document["notes"]["shapes_color"])
    assert 0.7 < scores.min() and scores.max() < 1
    assert evaluate(score_as="yes_token")[0] == 0 and np.allclose(numbers(tmp_path)[1], scores)


def test_an_answer_with_neither_yes_nor_no_is_undecided(chat_server, evaluate, tmp_path):
    chat_server.listed = lambda share: [("The", -0.1), ("A", -2.5)]
    code, _, printed = evaluate()
    assert code == 1 and "no score for a pair of 3 of 3 groups" in printed and "'The'" in printed
    code, document, printed = evaluate(on_refusal="wrong")
    expected = {"pairs": N_PAIRS, "of": N_PAIRS, "mass": 0, "instead": "The"}
    assert code == 1 and document["undecided"]["shapes_color"] == expected
    assert document["results"]["shapes_color"]["group_score,none"] == 0 and "groups, undecided" in printed
    code, *_ = evaluate(score_as="yes_token")
    assert code == 1 and not np.any(numbers(tmp_path)[1]), "as published: a token that is not listed has nothing"


@pytest.mark.parametrize("score_as", ["log_odds", "probability", "yes_token"])
def test_a_model_that_thinks_first_is_an_error(chat_server, evaluate, score_as):
    chat_server.listed = lambda share: [("<think>", -1e-5), ("Yes", -12.5 - share), ("No", -13.0)]
    code, document, printed = evaluate(score_as=score_as)
    found = document["undecided"]["shapes_color"]
    assert code == 1 and found["pairs"] == N_PAIRS and found["mass"] < 1e-4 and found["instead"] == "<think>"
    assert "<think>" in printed and "enable_thinking=false" in printed


def test_variables_of_the_chat_template_are_sent(chat_server, evaluate):
    evaluate()
    assert not any("chat_template_kwargs" in body for body in chat_server.requests)
    before = len(chat_server.requests)
    _, document, _ = evaluate(**{"chat_template_kwargs.enable_thinking": "false"})
    sent = [body["chat_template_kwargs"] for body in chat_server.requests[before:]]
    assert sent == [{"enable_thinking": False}] * N_PAIRS, "another question, which no stored answer is to"
    assert document["model_info"]["fingerprint"]["chat_template_kwargs"] == {"enable_thinking": False}
