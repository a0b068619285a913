"""Sweeps of a model behind a server: its questions are cut into shares, and none is asked a second time."""

from __future__ import annotations

import json
import threading

import pytest
from support.sweeps import SMALL, cells_of, numbers, write_plan

from ttmbench.cli import main
from ttmbench.evaluator.run import run
from ttmbench.evaluator.unit import units_of
from ttmbench.evaluator.worker import Worker
from ttmbench.sweep.folder import read_summary

N_QUESTIONS = 24  # of six 2x2 groups


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-test")


@pytest.fixture
def plan(chat_server, tmp_path):
    """Gives the plan of one task that is asked in three shares, by arguments of the model."""

    def content(**arguments):
        given = {"model": "test-model", "base_url": chat_server.url, "cache": str(tmp_path / "answers.sqlite")}
        model = {"model": "openai", "shards": 3, "model_args": {**given, "backoff": 0.01, "timeout": 5, **arguments}}
        return {"models": [model], "tasks": ["shapes_color"], "options": {**SMALL, "limit": 6}}

    return content


@pytest.fixture
def asked_by_one_run(chat_server, tmp_path):
    """Gives what a cell's document says when one run asks everything."""

    def document_of(cell):
        (tmp_path / "answers.sqlite").unlink()
        run(cell.config_at(tmp_path / "alone"))
        return content(tmp_path / "alone" / cell.document)

    return document_of


def content(path):
    """A document, and apart what its run has used."""
    document = json.loads(numbers(path))
    return document, document["model_info"].pop("usage")


@pytest.mark.parametrize("arguments", [{}, {"scorer": "choice"}], ids=["pairs", "choices"])
def test_every_share_asks_its_own_questions_and_the_run_asks_none(
    chat_server, tmp_path, plan, asked_by_one_run, arguments
):
    (planned,) = cells_of(tmp_path, **plan(**arguments))
    shares, (last,) = units_of(planned.cell)
    for number, unit in enumerate(shares, 1):
        assert Worker(tmp_path).do(unit).error is None
        assert len(chat_server.requests) == number * N_QUESTIONS / 3
    assert Worker(tmp_path).do(last).error is None
    assert len(chat_server.requests) == N_QUESTIONS and set(chat_server.answered.values()) == {1}

    document, usage = content(tmp_path / planned.cell.document)
    assert (usage["requests"], usage["stored_answers"]) == (0, N_QUESTIONS)
    alone, usage = asked_by_one_run(planned.cell)
    assert (usage["requests"], usage["stored_answers"]) == (N_QUESTIONS, 0)
    assert document == alone and set(chat_server.answered.values()) == {2}


def test_two_workers_ask_at_the_same_time_and_nothing_twice(chat_server, tmp_path, plan, asked_by_one_run, forked):
    """The command as it is typed, two processes and one file of answers."""
    other = threading.Event()

    def wait_for_the_other(number):
        if number == 0:
            assert other.wait(60)
        other.set()

    chat_server.before = wait_for_the_other
    written = plan(concurrency=1, timeout=60)
    assert main(["sweep", str(write_plan(tmp_path, **written)), "-o", str(tmp_path / "board"), "--workers", "2"]) == 0
    assert len(forked) == chat_server.most_at_once == 2
    assert len(chat_server.requests) == N_QUESTIONS and set(chat_server.answered.values()) == {1}

    (one,) = read_summary(tmp_path / "board" / "sweep.json").cells
    document, usage = content(tmp_path / "board" / one.document)
    assert (usage["requests"], usage["stored_answers"]) == (0, N_QUESTIONS)
    (planned,) = cells_of(tmp_path, **written)
    assert document == asked_by_one_run(planned.cell)[0]


def test_shares_divide_what_may_be_spent(chat_server, tmp_path, plan):
    """A question costs 0.3: of 3, each of three shares may ask three of its eight, and goes on when done again."""
    (planned,) = cells_of(tmp_path, **plan(price_in=1000, price_out=0, max_cost=3, concurrency=1))
    shares, _ = units_of(planned.cell)
    for unit in shares:
        error = Worker(tmp_path).do(unit).error
        assert error.startswith("stopped before max_cost=3, $1.00 for each of 3 shares: 3 of 8 questions were asked")
    assert len(chat_server.requests) == 9
    assert Worker(tmp_path).do(shares[0]).error is not None
    assert len(chat_server.requests) == 12 and set(chat_server.answered.values()) == {1}
