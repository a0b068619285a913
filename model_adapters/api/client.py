"""Asks an OpenAI-compatible server: retries what may pass, says clearly what will not, and never shows the key."""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from ttmbench.errors import DataError, TtmbenchError, UsageError

LONGEST_WAIT = 60.0  # seconds between two tries, unless the server asks for more: it is honoured up to the next
LONGEST_ASKED = 900.0  # a server that asks for more than this is out of reach for today
_PASSING = {408, 409, 425, 429}  # and every 5xx
_REFUSALS = ("content_policy", "content_filter", "moderation_blocked", "responsibleaipolicyviolation")
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
    """

    base_url: str
    key: str | None
    timeout: float = 60.0
    retries: int = 8
    backoff: float = 0.5

    def __repr__(self) -> str:
        return f"Server({self.identity!r})"

    @property
    def identity(self) -> str:
        """Host and path, without port, user and password: what tells servers apart in keys of stored answers."""
        url = httpx2.URL(self.base_url)
        return f"{url.host}{url.path.rstrip('/')}"

    def pause_before(self, attempt: int) -> float:
        """Seconds before a further try, counted from 1, where the server names none."""
        # Questions that failed together come back one by one, also once the wait no longer grows.
        spread = random.uniform(0.75, 1.25)
        return min(self.backoff * 2.0 ** min(attempt - 1, 100), LONGEST_WAIT / 1.25) * spread

    def clean(self, text: str) -> str:
        """A text of the server without the key, in one line."""
        shown = text.replace(self.key, "<redacted>") if self.key else text
        return " ".join(_KEY_LIKE.sub("<redacted>", shown).split())[:300]


class ChatClient:
    """One client for all questions of a task.

    Args:
        server: where to ask.
        sleep: waits, and raises where the wait is to be given up.
        count: called at each request.
    """

    def __init__(self, server: Server, sleep: Callable[[float], Any], count: Callable[[], None]) -> None:
        self._server, self._sleep, self._count = server, sleep, count
        self._free_at = 0.0  # a server that asks one question to wait asks all of them
        self._limit_name = "max_tokens"
        self._lists_tokens = False  # whether an answer with log-probabilities came: then one without is a mishap
        headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
        self._http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(server.timeout),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Asks until there is an answer.

        Args:
            body: of the request; ``max_tokens`` is renamed for servers that want another name.

        Returns:
            ``text``, ``refusal`` (why there is no answer, if the server or the model refused), ``top_logprobs`` as
            [token, log-probability] of the first token, ``finish_reason``, ``usage``, ``model`` and
            ``system_fingerprint``.

        Raises:
            DataError: the server cannot be reached, or does not accept the key.
            UsageError: the model does not exist, or gives no log-probabilities.
            TtmbenchError: the server does not take the request.
        """
        # A loop of our own: a wait ends when the pool stops, one question's Retry-After holds back all others, and the
        # content of an answer decides what is tried again. Of a library only the counting to `retries` would be left.
        wants_logprobs = bool(body.get("logprobs"))
        problem, wait = "", 0.0
        for attempt in range(self._server.retries + 1):
            if attempt:
                await self._sleep(max(wait, self._server.pause_before(attempt)))
            await self._sleep(self._free_at - time.monotonic())
            problem, wait = "", 0.0
            try:
                response = await self._post(body)
                if response.status_code == 200:
                    answer = _answer_of(response.json())
                    self._lists_tokens |= bool(answer["top_logprobs"])
                    if not wants_logprobs or answer["refusal"] is not None or answer["top_logprobs"]:
                        return answer
                    problem = f"model {body['model']} {_NO_LOGPROBS}"
                    if attempt and not self._lists_tokens:
                        raise UsageError(problem)
                    continue
                refusal = self._refusal_of(response)
                if refusal is not None:
                    return _refused(refusal)
                problem = self._what_is_wrong(response, body)
                wait = self._asked_to_wait(response)
            except httpx2.TimeoutException:
                problem = f"no answer within {self._server.timeout:g} s (timeout=...)"
            except httpx2.HTTPError as error:
                problem = f"{type(error).__name__}: {self._server.clean(str(error))}".rstrip(": .")
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                detail = self._server.clean(f"{type(error).__name__}: {error}")
                problem = f"its answer is not what a chat-completions server gives ({detail})"
        raise DataError(
            f"{self._server.identity} did not answer in {self._server.retries + 1} tries: {problem}. "
            "Answers that came are kept, so a rerun asks for the rest"
        )

    async def _post(self, body: Mapping[str, Any]) -> httpx2.Response:
        sent = {self._limit_name if name == "max_tokens" else name: value for name, value in body.items()}
        self._count()
        # httpx's own limits are for parts of an exchange; this one is for the whole.
        try:
            async with asyncio.timeout(self._server.timeout):
                return await self._http.post(f"{self._server.base_url.rstrip('/')}/chat/completions", json=sent)
        except TimeoutError:
            raise httpx2.ReadTimeout("the whole exchange took too long") from None

    def _what_is_wrong(self, response: httpx2.Response, body: Mapping[str, Any]) -> str:
        """Why an answer with an error code may pass; raises if it will not."""
        status, error = response.status_code, _error_of(response)
        message = self._server.clean(str(error.get("message") or response.text))
        detail = f"{self._server.identity} says {status}: {message}"
        if error.get("code") == "insufficient_quota":
            raise DataError(f"{detail}. The account has no credit left; answers that came are kept")
        if status in _PASSING or status >= 500:
            return f"{status} {message}"
        if status in (401, 403) and "logprob" not in message.casefold():
            raise DataError(f"{detail}. Is the key in the environment right (api_key_env=NAME)?")
        if "max_completion_tokens" in message and self._limit_name == "max_tokens":
            self._limit_name = "max_completion_tokens"
            return message
        if "logprob" in message.casefold():
            raise UsageError(f"model {body['model']} {_NO_LOGPROBS} ({detail})")
        if status == 404:
            raise UsageError(f"{detail}. Are model={body['model']} and base_url right?")
        raise TtmbenchError(detail)

    def _refusal_of(self, response: httpx2.Response) -> str | None:
        """Why the server refused for its content, None if it did not."""
        if response.status_code not in (400, 403):
            return None
        error = _error_of(response)
        inner = error.get("innererror")
        codes = [error.get("code"), error.get("type"), inner.get("code") if isinstance(inner, dict) else None]
        if any(sign in str(code).casefold() for sign in _REFUSALS for code in codes):
            return self._server.clean(str(error.get("message") or "content policy"))
        return None

    def _asked_to_wait(self, response: httpx2.Response) -> float:
        """Seconds that the server asks to wait; every question waits for a server that limits its rate."""
        asked = _retry_after(response.headers)
        if asked > LONGEST_ASKED:
            raise DataError(
                f"{self._server.identity} asks to come back in {asked:.0f} s. Answers that came are kept, so a rerun "
                "then asks for the rest"
            )
        if response.status_code == 429 and asked:
            self._free_at = max(self._free_at, time.monotonic() + asked)
        return asked


def _answer_of(content: Any) -> dict[str, Any]:
    """What matters of a chat completion; KeyError and the like if it is none."""
    if content.get("error") and not content.get("choices"):
        raise ValueError(f"an error with status 200: {content['error']}")
    choice = content["choices"][0]
    message = choice["message"]
    text, refusal = message.get("content"), message.get("refusal")
    if not refusal and choice.get("finish_reason") == "content_filter":
        refusal = "content filter"
    if not refusal and not isinstance(text, str):
        raise TypeError("no text")
    listed = ((choice.get("logprobs") or {}).get("content") or [{}])[0].get("top_logprobs") or []
    usage = content.get("usage")
    return {
        "text": text if isinstance(text, str) else None,
        "refusal": str(refusal) if refusal else None,
        "top_logprobs": [[str(one["token"]), float(one["logprob"])] for one in listed],
        "finish_reason": choice.get("finish_reason"),
        "usage": usage if isinstance(usage, dict) else None,
        "model": content.get("model"),
        "system_fingerprint": content.get("system_fingerprint"),
    }


def _refused(reason: str) -> dict[str, Any]:
    """An answer that the server kept back; what it does not answer it does not bill."""
    empty = dict.fromkeys(("text", "finish_reason", "model", "system_fingerprint"))
    return {**empty, "refusal": reason, "top_logprobs": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}


def _error_of(response: httpx2.Response) -> dict[str, Any]:
    try:
        content = json.loads(response.content)
    except ValueError:
        return {}
    error = content.get("error") if isinstance(content, dict) else None
    if isinstance(error, dict):
        return error
    return {"message": str(error or content.get("message") or "")} if isinstance(content, dict) else {}


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds of a Retry-After header, which holds seconds or a date; 0 if there is none."""
    if "retry-after-ms" in headers:
        try:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        except ValueError:
            pass
    value = headers.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0
