"""How long the client of a chat-completions server waits between two tries: it grows, it is bounded, it is told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import httpx2
import pytest

from ttmbench.errors import DataError
from ttmbench.model_adapters.api import client as module
from ttmbench.model_adapters.api.client import LONGEST_ASKED, LONGEST_WAIT, ChatClient, Server

ANSWER = {"choices": [{"message": {"content": "A"}, "finish_reason": "stop"}]}


def ask(answers: list[httpx2.Response], **server: float) -> list[float]:
    """Seconds that were waited for until the answer came."""
    waited: list[float] = []
    clock = [1000.0]

    async def sleep(seconds: float) -> None:
        if seconds > 0:
            waited.append(seconds)
            clock[0] += seconds

    async def main() -> None:
        settings = Server("http://example.org/v1", None, retries=len(answers), **server)
        async with ChatClient(settings, sleep, lambda: None) as client:
            client._http = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda request: answers.pop(0)))
            assert (await client.ask({"model": "m", "messages": []}))["text"] == "A"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        asyncio.run(main())
    return waited


def failing(times: int, status: int = 503, **headers: str) -> list[httpx2.Response]:
    return [httpx2.Response(status, headers=headers) for _ in range(times)] + [httpx2.Response(200, json=ANSWER)]


def test_the_wait_doubles_up_to_a_minute_and_never_beyond():
    waited = ask(failing(40), backoff=0.5)
    assert len(waited) == 40
    for index, seconds in enumerate(waited):
        usual = min(0.5 * 2**index, LONGEST_WAIT / 1.25)
        assert 0.75 * usual <= seconds <= 1.25 * usual <= LONGEST_WAIT
    assert len(set(waited[8:])) > 1, "questions that failed together do not come back together"


@pytest.mark.parametrize("attempt", [1, 50, 5000])
@pytest.mark.parametrize("backoff", [0.0, 0.5, 1e6])
def test_no_number_of_tries_and_no_backoff_waits_longer(attempt, backoff):
    assert 0 <= Server("x", None, backoff=backoff).pause_before(attempt) <= LONGEST_WAIT


@pytest.mark.parametrize("asked", [70.0, LONGEST_ASKED])
def test_what_the_server_asks_for_is_waited_even_if_it_is_longer(asked):
    assert ask(failing(1, **{"retry-after": str(asked)}), backoff=0.5) == [asked]


def test_a_server_that_asks_for_more_than_its_limit_is_given_up_at_once():
    answers = failing(1, **{"retry-after": str(LONGEST_ASKED + 1)})
    with pytest.raises(DataError, match=r"asks to come back in 901 s\. Answers that came are kept"):
        ask(answers)
    assert len(answers) == 1, "nothing more was asked"
