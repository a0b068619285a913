"""Files of the batch API: the numbers are those of asking one by one, and an answer goes to its own question alone."""

from __future__ import annotations

import json
import random

import httpx2
import pytest

from ttmbench.cli import main
from ttmbench.model_adapters.api import batch_files


@pytest.fixture
def evaluate(tmp_path, capsys, monkeypatch):
    """Runs the public command on two groups: exit code, scores of every pair, what it says."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(task: str = "shapes_color", *more: str, model: str = "some-model", cache: str = "answers", **arguments):
        out = tmp_path / "results" / "out.json"
        given = {"model": model, "base_url": "https://api.example.com/v1", "cache": tmp_path / cache, **arguments}
        words = ["--model", "openai", "--model_args", ",".join(f"{name}={value}" for name, value in given.items())]
        words += ["--tasks", task, "--limit", "2", "--bootstrap_iters", "0", "--log_samples", "-o", str(out), *more]
        code = main(words)
        told = " ".join(capsys.readouterr().err.split())
        lines = out.with_name(f"out_samples_{task}.jsonl")
        scores = [json.loads(line)["scores"] for line in lines.read_text().splitlines()] if code == 0 else None
        return code, scores, told

    return run


def answered(requests, server, change=lambda number, line: line) -> list[str]:
    """What a provider makes of a file of requests: answers of the stand-in server, in another order."""
    lines = []
    for number, line in enumerate(requests.read_text().splitlines()):
        request = json.loads(line)
        assert set(request) == {"custom_id", "method", "url", "body"}
        assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
        reply = httpx2.post(f"{server.url}/chat/completions", json=request["body"])
        response = {"status_code": reply.status_code, "request_id": f"r{number}", "body": reply.json()}
        done = {"id": f"b{number}", "custom_id": request["custom_id"], "response": response, "error": None}
        lines.append(json.dumps(change(number, done)))
    random.Random(1).shuffle(lines)
    return [line for line in lines if line != "null"]


def test_a_batch_gives_the_scores_of_single_questions(chat_server, evaluate, tmp_path):
    requests, answers = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    code, _, told = evaluate(batch_requests=requests)
    assert code == 4 and "8 questions are written to" in told and chat_server.requests == []
    answers.write_text("\n".join(answered(requests, chat_server)))
    asked = len(chat_server.requests)
    code, scores, _ = evaluate(batch_answers=answers)
    assert code == 0 and len(chat_server.requests) == asked == 8
    assert scores == evaluate(base_url=chat_server.url, cache="single")[1]
    assert evaluate(batch_answers=tmp_path / "nothing")[1] == scores, "answers are stored"
    assert "already exists" in evaluate(cache="new", batch_requests=requests)[2]


def test_answers_of_another_task_model_or_setting_are_of_no_use(chat_server, evaluate, tmp_path):
    requests, answers = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    evaluate(batch_requests=requests)
    answers.write_text("\n".join(answered(requests, chat_server)))
    for task, change in (
        ("shapes_spatial", {}),
        ("shapes_color", {"model": "other"}),
        ("shapes_color", {"detail": "low"}),
    ):
        code, _, told = evaluate(task, batch_answers=answers, **change)
        assert code == 4 and "has no answer to 8 of 8 questions" in told, told


def test_errors_and_gaps_are_named_and_asked_again(chat_server, evaluate, tmp_path):
    requests, outputs = tmp_path / "requests.jsonl", tmp_path / "outputs"
    outputs.mkdir()
    evaluate(batch_requests=requests)

    def change(number, line):
        expired = {"code": "batch_expired", "message": "This request could not be executed in time."}
        limited = {"status_code": 429, "body": {"error": {"message": "slow down"}}}
        silent = {"status_code": 200, "body": {"choices": [{"message": {"content": "Yes"}, "logprobs": None}]}}
        changed = {0: {"response": None, "error": expired}, 1: {"response": limited}, 2: {"response": silent}}
        return None if number == 3 else {**line, **changed.get(number, {})}

    (outputs / "1.jsonl").write_text("\n".join(answered(requests, chat_server, change)))
    code, _, told = evaluate(batch_answers=outputs)
    assert code == 4 and "3 answers in" in told and "no answer to 4 of 8 questions" in told
    assert "batch_expired: This request" in told and "429: slow down" in told and "no log-probabilities" in told
    rest = tmp_path / "rest.jsonl"
    code, _, told = evaluate(batch_requests=rest)
    assert code == 4 and len(rest.read_text().splitlines()) == 4
    (outputs / "1.jsonl").unlink()
    (outputs / "2.jsonl").write_text("\n".join(answered(rest, chat_server)))
    code, scores, _ = evaluate(batch_answers=outputs)
    assert code == 0 and scores == evaluate(base_url=chat_server.url, cache="single")[1]


def test_tasks_share_files_of_bounded_size(evaluate, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_files, "MOST_REQUESTS", 5)
    requests = tmp_path / "requests.jsonl"
    tasks = "shapes_color,shapes_spatial"
    code, _, told = evaluate(tasks, "--on_error", "continue", batch_requests=requests)
    counts = [len(path.read_text().splitlines()) for path in sorted(tmp_path.glob("requests*.jsonl"))]
    assert code != 0 and sorted(counts) == [1, 5, 5, 5] and "requests.2.jsonl" in told


def test_a_limit_of_costs_is_the_providers(evaluate, tmp_path):
    code, _, told = evaluate(batch_requests=tmp_path / "r.jsonl", max_cost=1, price_in=1, price_out=1)
    assert code == 2 and "limit a batch (batch_requests) at its provider" in told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1 is not a line of a batch's output"),
        ('{"custom_id": "a", "method": "POST", "body": {}}', "is a request; the answers are in the file"),
        ('{"custom_id": "a", "response": 1}\n{"custom_id": "a", "response": 2}', "answer the same question"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_is_no_file_of_answers_is_one_line(text, says, evaluate, tmp_path):
    path = tmp_path / "answers.jsonl"
    if text is not None:
        path.write_text(text)
    code, _, told = evaluate(batch_answers=path)
    assert code == 4 and says in told
