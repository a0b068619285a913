"""Asks an OpenAI-compatible server: retries what may pass, says clearly what will not, and never shows the key."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache

import httpx2

from ttmbench._util.limits import limit, raised_by
from ttmbench._util.rate_limit import Pauses
from ttmbench._util.redact import GONE, SHORTEST, secrets_in_url, without
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.model_adapters.api.answers import Answer, BadAnswerError, Reply, read_answer, refused
from ttmbench.model_adapters.api.dialect import Body, Dialect

LONGEST_WAIT = 60.0  # seconds between two tries, unless the server asks for more: it is honoured up to the next
LONGEST_ASKED = 900.0  # a server that asks for more than this is out of reach for today
BAD_ANSWERS = 2  # to one question, before it is given up
_PASSING = {408, 409, 425, 429}  # and every 5xx
_MESSAGE = 300  # characters of a message that are shown
_NO_LOGPROBS = (
    "gives no log-probabilities of tokens, which VQAScore needs; ask for forced choices (scorer=choice) instead"
)
_KEY_LIKE = re.compile(r"\b(?:sk|key|hf|gsk|xai)[-_][\w*-]{6,}")


@dataclass(frozen=True)
class Server:
    """Where and how to ask.

    Attributes:
        base_url: address of the API without ``/chat/completions``.
        key: what authorises; None sends none.
        timeout: seconds until an answer must be there.
        retries: tries after the first.
        backoff: seconds before the second try; doubles with each, up to `LONGEST_WAIT`.
        api_version: of Azure, which wants it in the query, and the key in a header of its own name.
    """

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
        """Host and path, without port, user, password and keys: what tells servers apart in keys of stored answers."""
        url = httpx2.URL(self.base_url)
        path = url.path.rstrip("/")
        if self.key and len(self.key) >= SHORTEST:
            path = path.replace(self.key, GONE)
        for secret in secrets_in_url(path):
            # Servers that differ in this alone stay two, for they may serve different models.
            path = path.replace(secret, f"{GONE[:-1]}-{hashlib.sha256(secret.encode()).hexdigest()[:8]}>")
        return f"{url.host}{path}"

    @property
    def declared(self) -> dict[str, str]:
        """What else of it may change an answer."""
        return {"api_version": self.api_version} if self.api_version else {}

    @property
    def address(self) -> httpx2.URL:
        """Where questions go."""
        url = httpx2.URL(f"{self.base_url.rstrip('/')}/chat/completions")
        return url.copy_merge_params({"api-version": self.api_version}) if self.api_version else url

    @property
    def headers(self) -> dict[str, str]:
        """What authorises, in the header that the server wants it in."""
        if not self.key:
            return {}
        return {"api-key": self.key} if self.api_version else {"Authorization": f"Bearer {self.key}"}

    def pause_before(self, attempt: int) -> float:
        """Seconds before a further try, counted from 1, where the server names none."""
        # Questions that failed together come back one by one, also once the wait no longer grows.
        spread = random.uniform(0.75, 1.25)
        return min(self.backoff * 2.0 ** min(attempt - 1, 100), LONGEST_WAIT / 1.25) * spread

    def hide(self, text: str) -> str:
        """A text of the server without the key and what else is secret in its address, also in escapes and in parts."""
        for secret in ([self.key] if self.key else []) + secrets_in_url(self.base_url):
            text = without(text, secret) if SHORTEST <= len(secret) else text
        return text

    def clean(self, text: str) -> str:
        """A message of the server without the key, in one bounded line."""
        hidden = self.hide(text[: 10 * _MESSAGE])
        if self.key and len(self.key) < SHORTEST:  # a word like any other, which answers may hold
            hidden = hidden.replace(self.key, GONE)
        return " ".join(_KEY_LIKE.sub(GONE, hidden).split())[:_MESSAGE]


@cache
def _certificates() -> ssl.SSLContext:
    """What the certificates of servers are checked by; reading all authorities takes longer than most questions."""
    return httpx2.create_ssl_context()


class ChatClient:
    """One client for all questions of a task.

    Args:
        server: where to ask.
        sleep: waits, and raises where the wait is to be given up.
        count: called at each request.
        dialect: what is known of how the server wants to be asked; what is learnt is added.
        pauses: kept together with other processes that ask the same server; None where there are none.
    """

    def __init__(
        self,
        server: Server,
        sleep: Callable[[float], Awaitable[None]],
        count: Callable[[], None],
        dialect: Dialect | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        self._server, self._sleep, self._count, self._pauses = server, sleep, count, pauses
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
        """Asks until there is an answer.

        Args:
            body: of the request, in OpenAI's words; see `Dialect` for servers that want others.

        Returns:
            The answer, also if it is a refusal.

        Raises:
            DataError: the server cannot be reached, does not accept the key, or gives answers that say nothing.
            UsageError: the model does not exist, or gives no log-probabilities.
            TtmbenchError: the server does not take the request.
        """
        # A loop of our own: a wait ends when the pool stops, one question's Retry-After holds back all others, and the
        # content of an answer decides what is tried again. Of a library only the counting to `retries` would be left.
        wants_logprobs = bool(body.get("logprobs"))
        problem, wait, bad = "", 0.0, 0
        for attempt in range(self._server.retries + 1):
            if attempt:
                await self._sleep(max(wait, self._server.pause_before(attempt)))
            await self._wait_for_others(str(body["model"]))
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
                if reply.status == 429 and self._pauses is not None:
                    self._pauses.hold(self._line(body["model"]), wait or self._server.pause_before(attempt + 1))
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
                raise DataError(f"{self._server.identity} gives no usable answer: {problem}. It was not kept")
        raise DataError(
            f"{self._server.identity} did not answer in {self._server.retries + 1} tries: {problem}. "
            "Answers that came are kept, so a rerun asks for the rest"
        )

    async def _wait_for_others(self, model: str) -> None:
        """Waits as long as the server wants all questions to, those of other processes too."""
        await self._sleep(self._free_at - time.monotonic())
        while self._pauses is not None and (left := self._pauses.left(self._line(model))) > 0:
            await self._sleep(left * random.uniform(1.0, 1.1))  # processes that wait together come back one by one

    def _line(self, model: str) -> str:
        """What a server limits the rate of: a model of its own."""
        return f"{self._server.identity} {model}"

    async def _post(self, body: Body) -> tuple[Body, Reply]:
        """What was sent in the end, and what came back: a question that the server wants otherwise is asked so."""
        while True:
            sent = self._dialect.said(body)
            reply = await self._send(sent)
            if reply.status not in (400, 422) or not self._dialect.learn(_message_of(reply), sent):
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
        """Why an answer with an error code may pass; raises if it will not."""
        status, message = reply.status, self._server.clean(_message_of(reply))
        detail = f"{self._server.identity} says {status}: {message}"
        if reply.error.get("code") == "insufficient_quota":
            raise DataError(f"{detail}. The account has no credit left; answers that came are kept")
        if status in _PASSING or status >= 500:
            return f"{status} {message}"
        if status in (401, 403) and "logprob" not in message.casefold():
            raise DataError(f"{detail}. Is the key in the environment right (api_key_env=NAME)?")
        if "logprob" in message.casefold():
            raise UsageError(f"model {body['model']} {_NO_LOGPROBS} ({detail})")
        if status == 404:
            raise UsageError(f"{detail}. Are model={body['model']} and base_url right?")
        raise TtmbenchError(detail)

    def _asked_to_wait(self, reply: Reply) -> float:
        """Seconds that the server asks to wait; every question waits for a server that limits its rate."""
        asked = reply.seconds_to_wait
        if asked > LONGEST_ASKED:
            raise DataError(
                f"{self._server.identity} asks to come back in {asked:.0f} s. Answers that came are kept, so a rerun "
                "then asks for the rest"
            )
        if reply.status == 429 and asked:
            self._free_at = max(self._free_at, time.monotonic() + asked)
        return asked


def _message_of(reply: Reply) -> str:
    return str(reply.error.get("message") or reply.text)
