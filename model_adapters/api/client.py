"""Asks an OpenAI-compatible server: retries transient errors, adapts to its parameters, never shows the key."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx2

from ttmbench._util.limits import limit, raised_by
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.model_adapters.api.answers import Answer, BadAnswerError, Reply, read_answer, refused

Body = dict[str, Any]
"""Parameters of a request, in OpenAI's words."""
LONGEST_WAIT = 60.0  # seconds between two tries, unless the server asks for more
LONGEST_ASKED = 900.0  # a server that asks for more than this is given up
GONE = "<redacted>"
SHORTEST = 8  # characters of a key that is removed from what a server says
BAD_ANSWERS = 2  # to one question, before it is given up
_PASSING = {408, 409, 425, 429}  # and every 5xx
_MESSAGE = 300  # characters of a message that are shown
_NO_LOGPROBS = (
    "gives no log-probabilities of tokens, which VQAScore needs; ask for forced choices (scorer=choice) instead"
)
_KEY_LIKE = re.compile(r"\b(?:sk|key|hf|gsk|xai)[-_][\w*-]{6,}")
_LIMITS = (
    r"max(?:imum)?(?: value)?(?: allowed| of| is|imum)*[\s:='\"]+(\d+)",
    r"(?:less than or equal to|at most|up to|no more than|more than|not exceed|<=?)\s*(\d+)",
    r"(?:between|from)\s+\d+\s+(?:and|to)\s+(\d+)|[\[(]\d+\s*,\s*(\d+)[\])]",
    r"(?:allows|only)\s+(\d+)",
)
_TOO_MANY = re.compile(
    r"max|less than|at most|exceed|too (?:large|many|big|high)|greater|more than|between|range|limit"
)
_LADDER = (10, 5, 2, 1)  # tried where a server refuses a number without naming its limit


@dataclass(frozen=True)
class Server:
    """Where and how to ask; fields as in `ServedOptions`, and the key, None for servers without one."""

    base_url: str
    key: str | None
    timeout: float = 60.0
    retries: int = 8
    backoff: float = 0.5
    api_version: str | None = None

    def __repr__(self) -> str:
        return f"Server({self.identity!r})"

    @property
    def identity(self) -> str:
        """Host and path, without the port: part of the keys of stored answers."""
        url = httpx2.URL(self.base_url)
        return f"{url.host}{url.path.rstrip('/')}"

    @property
    def declared(self) -> dict[str, str]:
        """Further entries of fingerprints and of the keys of stored answers."""
        return {"api_version": self.api_version} if self.api_version else {}

    @property
    def address(self) -> httpx2.URL:
        """Where questions go."""
        url = httpx2.URL(f"{self.base_url.rstrip('/')}/chat/completions")
        return url.copy_merge_params({"api-version": self.api_version}) if self.api_version else url

    @property
    def headers(self) -> dict[str, str]:
        """Authorisation; Azure has a header of its own for it."""
        if not self.key:
            return {}
        return {"api-key": self.key} if self.api_version else {"Authorization": f"Bearer {self.key}"}

    def pause_before(self, attempt: int) -> float:
        """Seconds before a further try, counted from 1, where the server names none; doubles with each try."""
        # Random, so that questions that failed together are not sent together again.
        spread = random.uniform(0.75, 1.25)
        return min(self.backoff * 2.0 ** min(attempt - 1, 100), LONGEST_WAIT / 1.25) * spread

    def hide(self, text: str) -> str:
        """A text of the server without the key, unless that is a short word like any other."""
        return text.replace(self.key, GONE) if self.key and len(self.key) >= SHORTEST else text

    def clean(self, text: str) -> str:
        """A message of the server without the key, in one bounded line."""
        return " ".join(_KEY_LIKE.sub(GONE, self.hide(text[: 10 * _MESSAGE])).split())[:_MESSAGE]


@cache
def _certificates() -> ssl.SSLContext:
    """The certificate authorities; reading them takes longer than most questions."""
    return httpx2.create_ssl_context()


@dataclass
class Dialect:
    """How a server is asked, learnt from its refusals during a run.

    Attributes:
        limit_name: of the parameter that limits the answer.
        top_logprobs: the most tokens that it lists; None as long as it refuses no number.
        lists_tokens: whether an answer with log-probabilities came: then one without is an accident.
    """

    limit_name: str = "max_tokens"
    top_logprobs: int | None = None
    lists_tokens: bool = False

    def translated(self, body: Body) -> Body:
        """A request in the words that the server takes."""
        sent = {self.limit_name if name == "max_tokens" else name: value for name, value in body.items()}
        if self.top_logprobs is not None and "top_logprobs" in sent:
            sent["top_logprobs"] = min(sent["top_logprobs"], self.top_logprobs)
        return sent

    def learn(self, message: str, sent: Body) -> bool:
        """Whether a refusal of a request says how to ask it otherwise; if so, it is asked so from now on."""
        if "max_completion_tokens" in message and "max_tokens" in sent:
            self.limit_name = "max_completion_tokens"
            return True
        asked = sent.get("top_logprobs")
        if asked is None or "logprob" not in message.casefold():
            return False
        most = most_logprobs(message, asked)
        if most is not None:
            self.top_logprobs = most if self.top_logprobs is None else min(most, self.top_logprobs)
        return most is not None


def most_logprobs(message: str, asked: int) -> int | None:
    """How many tokens a server would list, by its refusal to list ``asked``; None if it refuses something else.

    >>> most_logprobs("Requested sample logprobs of 20, which is greater than max allowed: 5", 20)
    5
    >>> most_logprobs("Invalid value for 'top_logprobs': must be less than or equal to 8.", 20)
    8
    >>> most_logprobs("logprobs are not supported with this model", 20) is None
    True
    """
    text = message.casefold()
    for pattern in _LIMITS:
        for match in re.finditer(pattern, text):
            number = int(next(group for group in match.groups() if group))
            if 1 <= number < asked:
                return number
    if not _TOO_MANY.search(text) or "support" in text:
        return None
    return next((step for step in _LADDER if step < asked), None)


class ChatClient:
    """One client for all questions of a task.

    Args:
        server: where to ask.
        sleep: waits, and raises when the wait is to be given up.
        count: called at each request.
        dialect: learnt during earlier tasks; what is learnt is added.
    """

    def __init__(
        self,
        server: Server,
        sleep: Callable[[float], Awaitable[None]],
        count: Callable[[], None],
        dialect: Dialect | None = None,
    ) -> None:
        self._server, self._sleep, self._count = server, sleep, count
        self._free_at = 0.0  # a server that asks one question to wait asks all of them
        self._dialect = Dialect() if dialect is None else dialect
        self._http = httpx2.AsyncClient(
            headers=server.headers,
            timeout=httpx2.Timeout(server.timeout),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            verify=_certificates(),
        )

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, body: Body) -> Answer:
        """The answer, which may be a refusal.

        Raises:
            DataError: the server cannot be reached, does not accept the key, or gives unusable answers.
            UsageError: the model does not exist, or gives no log-probabilities.
            TtmbenchError: the server does not take the request.
        """
        # Not a library's: a wait ends when the pool stops, one question's Retry-After holds back all others, and the
        # content of an answer decides what is tried again.
        wants_logprobs = bool(body.get("logprobs"))
        problem, wait, bad = "", 0.0, 0
        for attempt in range(self._server.retries + 1):
            if attempt:
                await self._sleep(max(wait, self._server.pause_before(attempt)))
            await self._sleep(self._free_at - time.monotonic())
            problem, wait = "", 0.0
            try:
                sent, reply = await self._post(body)
                if reply.status == 200:
                    answer = read_answer(reply.content, self._server.hide)
                    self._dialect.lists_tokens |= bool(answer["top_logprobs"])
                    if not wants_logprobs or answer["refusal"] is not None or answer["top_logprobs"]:
                        if sent.get("top_logprobs") != body.get("top_logprobs"):
                            answer["top_logprobs_asked"] = sent["top_logprobs"]
                        return answer
                    problem = f"model {body['model']} {_NO_LOGPROBS}"
                    if attempt and not self._dialect.lists_tokens:
                        raise UsageError(problem)
                    continue
                if reply.refusal is not None:
                    return refused(self._server.clean(reply.refusal))
                problem = self._what_is_wrong(reply, body)
                wait = self._asked_to_wait(reply)
            except httpx2.TimeoutException:
                problem = f"no answer within {self._server.timeout:g} s (timeout=...)"
            except httpx2.HTTPError as error:
                problem = f"{type(error).__name__}: {self._server.clean(str(error))}".rstrip(": .")
            except BadAnswerError as error:
                problem, bad = f"its answer {self._server.clean(str(error))}", bad + 1
            except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
                detail = self._server.clean(f"{type(error).__name__}: {error}")
                problem = f"its answer is not what a chat-completions server gives ({detail})"
            if bad >= BAD_ANSWERS:
                raise DataError(f"{self._server.identity} gives no usable answer: {problem}. It was not stored")
        raise DataError(
            f"{self._server.identity} did not answer in {self._server.retries + 1} tries: {problem}. "
            "Answers so far are stored, so a rerun asks for the rest"
        )

    async def _post(self, body: Body) -> tuple[Body, Reply]:
        """The request in the server's words, and the response to it."""
        while True:
            sent = self._dialect.translated(body)
            reply = await self._send(sent)
            if reply.status not in (400, 422) or not self._dialect.learn(reply.message, sent):
                return sent, reply

    async def _send(self, sent: Body) -> Reply:
        self._count()
        most, content = limit("answer_bytes"), bytearray()
        # httpx's own limits are for parts of an exchange; this one is for the whole.
        try:
            async with (
                asyncio.timeout(self._server.timeout),
                self._http.stream("POST", self._server.address, json=sent) as response,
            ):
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > most:
                        raise DataError(
                            f"{self._server.identity} sends an answer of more than {most / 2**20:.3g} MB; is base_url "
                            f"right? {raised_by('answer_bytes')}"
                        )
                return Reply(response.status_code, response.headers, bytes(content))
        except TimeoutError:
            raise httpx2.ReadTimeout("the whole exchange took too long") from None

    def _what_is_wrong(self, reply: Reply, body: Body) -> str:
        """The reason of an error that may pass; other errors are raised."""
        status, message = reply.status, self._server.clean(reply.message)
        detail = f"{self._server.identity} says {status}: {message}"
        if reply.error.get("code") == "insufficient_quota":
            raise DataError(f"{detail}. The account has no credit left; answers so far are stored")
        if status in _PASSING or status >= 500:
            return f"{status} {message}"
        if status in (401, 403) and "logprob" not in message.casefold():
            raise DataError(f"{detail}. Is the key in the environment right? api_key_env names its variable")
        if "logprob" in message.casefold():
            raise UsageError(f"model {body['model']} {_NO_LOGPROBS} ({detail})")
        if status == 404:
            raise UsageError(f"{detail}. Are model={body['model']} and base_url right?")
        raise TtmbenchError(detail)

    def _asked_to_wait(self, reply: Reply) -> float:
        """Seconds that the server asks to wait; after a 429 every question waits for them."""
        asked = reply.seconds_to_wait
        if asked > LONGEST_ASKED:
            raise DataError(
                f"{self._server.identity} asks to come back in {asked:.0f} s. Answers so far are stored, so a rerun "
                "then asks for the rest"
            )
        if reply.status == 429 and asked:
            self._free_at = max(self._free_at, time.monotonic() + asked)
        return asked
