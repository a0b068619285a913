"""An OpenAI-compatible server, asked through the package openai, which retries; the key is in no message or answer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict
from urllib.parse import urlsplit

import openai

from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.model_adapters._shared.options import OpenaiOptions

Body = dict[str, Any]
"""Parameters of a request, in OpenAI's words."""
GONE = "<redacted>"
SHORTEST = 8  # characters of a key that is removed from what a server says
TRIES = 3  # of a question whose answer cannot be used
_MESSAGE = 300  # characters of a message that are shown
_NO_LOGPROBS = (
    "gives no log-probabilities of tokens, which VQAScore needs; ask for forced choices (scorer=choice) instead"
)
_FEWER = "If it lists fewer tokens, ask for as many as it allows: top_logprobs=5"
_KEY_LIKE = re.compile(r"\b(?:sk|key|hf|gsk|xai)[-_][\w*-]{6,}")
_NO_ANSWER = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)  # of a body that is none
_REFUSALS = ("content_policy", "content_filter", "moderation_blocked", "responsibleaipolicyviolation")
_ROUNDING = 0.01  # by so much may a log-probability, and the logarithm of the sum of all probabilities, be above 0
_MOST_TOKENS = 10**12  # a larger count is an error


class Answer(TypedDict):
    """An answer as it is stored.

    ``refusal`` is the reason, if the server or the model refused; ``top_logprobs`` are (token, log-probability) of the
    first token; ``usage`` is None without plausible counts of tokens.
    """

    text: str | None
    refusal: str | None
    top_logprobs: list[tuple[str, float]]
    usage: dict[str, int] | None
    model: str | None
    system_fingerprint: str | None


class Server:
    """Where and how to ask, with a key or none, and what is learnt of it during a run."""

    def __init__(self, asked: OpenaiOptions, key: str | None) -> None:
        self._asked, self._key = asked, key
        url = urlsplit(asked.base_url)
        self.identity = f"{url.hostname}{url.path.rstrip('/')}"  # without the port: part of the keys of stored answers
        self.declared = {"api_version": asked.api_version} if asked.api_version else {}  # likewise
        self._limit = "max_tokens"  # the name that the server has for it
        self._lists_tokens = False  # whether an answer with log-probabilities came: then one without is an accident

    def client(self, before: Callable[[object], None]) -> openai.OpenAI:
        """A client, which calls ``before`` at each request."""
        return openai.OpenAI(
            api_key=self._key or "none",  # which is then not sent
            base_url=self._asked.base_url,
            timeout=self._asked.timeout,
            max_retries=self._asked.retries,
            default_query={"api-version": self._asked.api_version} if self._asked.api_version else None,
            http_client=openai.DefaultHttpxClient(event_hooks={"request": [before]}),
        )

    def ask(self, client: openai.OpenAI, body: Body) -> Answer:
        """The answer, which may be a refusal.

        DataError for no usable answer, UsageError for a wrong model, TtmbenchError for a request that is not taken.
        """
        problem = ""
        for attempt in range(TRIES):
            try:
                content = self._post(client, body)
            except openai.APIStatusError as error:
                return self._refused(error, body)
            except openai.APIConnectionError as error:
                cause = error.__cause__ or error
                reason = f"{type(cause).__name__}: {self._clean(str(cause))}".rstrip(": .")
                if isinstance(error, openai.APITimeoutError):
                    reason = f"no answer within {self._asked.timeout:g} s (timeout=...)"
                raise DataError(self._unanswered(reason)) from None
            try:
                answer = self._read(json.loads(content))
            except _NO_ANSWER as error:
                detail = self._clean(f"{type(error).__name__}: {error}")
                problem = f"its answer is not what a chat-completions server gives ({detail})"
                continue
            self._lists_tokens |= bool(answer["top_logprobs"])
            if not body.get("logprobs") or answer["refusal"] is not None or answer["top_logprobs"]:
                return answer
            problem = f"model {body['model']} {_NO_LOGPROBS}"
            if attempt and not self._lists_tokens:
                raise UsageError(problem)
        raise DataError(f"{self.identity} gives no usable answer: {problem}. It was not stored")

    def _post(self, client: openai.OpenAI, body: Body) -> str:
        """The body of the response to a request in the server's words."""
        # Azure's dated versions have another header for the key than the package's own.
        own = {"api-key": self._key} if self._key else {}
        headers: Any = {} if self._key and not self._asked.api_version else {"Authorization": openai.omit, **own}
        while True:
            sent = {self._limit if name == "max_tokens" else name: value for name, value in body.items()}
            try:
                # As ``extra_body``: servers take more parameters than the package knows.
                return client.chat.completions.with_raw_response.create(
                    model=sent["model"], messages=sent["messages"], extra_headers=headers, extra_body=sent
                ).text
            except openai.APIStatusError as error:
                if "max_tokens" not in sent or "max_completion_tokens" not in error.response.text:
                    raise
                self._limit = "max_completion_tokens"

    def _refused(self, error: openai.APIStatusError, body: Body) -> Answer:
        """The answer for a refusal of the question's content, which costs nothing; other errors are raised."""
        status, said = error.status_code, _error_in(error.response.text)
        message = self._clean(str(said.get("message") or error.response.text))
        inner = said.get("innererror")
        codes = [said.get("code"), said.get("type"), inner.get("code") if isinstance(inner, dict) else None]
        if status in (400, 403) and any(sign in str(code).casefold() for sign in _REFUSALS for code in codes):
            free = {"prompt_tokens": 0, "completion_tokens": 0}
            return Answer(text=None, refusal=message, top_logprobs=[], usage=free, model=None, system_fingerprint=None)
        detail = f"{self.identity} says {status}: {message}"
        if error.code == "insufficient_quota":
            raise DataError(f"{detail}. The account has no credit left; answers so far are stored") from None
        if "logprob" in message.casefold() and status < 500:
            raise UsageError(f"model {body['model']} {_NO_LOGPROBS}. {_FEWER} ({detail})") from None
        if status in (401, 403):
            raise DataError(f"{detail}. Is the key in the environment right? api_key_env names its variable") from None
        if status == 404:
            raise UsageError(f"{detail}. Are model={body['model']} and base_url right?") from None
        if status in (408, 409, 429) or status >= 500:
            raise DataError(self._unanswered(f"{status} {message}")) from None
        raise TtmbenchError(detail) from None

    def _unanswered(self, problem: str) -> str:
        return (
            f"{self.identity} did not answer in {self._asked.retries + 1} tries: {problem}. Answers so far are stored, "
            "so a rerun asks for the rest"
        )

    def _read(self, body: Body) -> Answer:
        """The answer in a chat completion; an error of `_NO_ANSWER` for anything else, or impossible numbers."""
        if body.get("error") and not body.get("choices"):
            raise ValueError(f"an error with status 200: {body['error']}")
        choice = body["choices"][0]
        message = choice["message"]
        text, refusal, finish = message.get("content"), message.get("refusal"), choice.get("finish_reason")
        if not refusal and finish == "content_filter":
            refusal = "content filter"
        if not refusal and text is None:
            hint = "; a model that thinks first needs room for it (max_tokens, with scorer=choice), or not to think"
            why = f"(content: null, finish_reason: {self._text(finish)})"
            raise ValueError(f"it has no text {why}{hint if finish == 'length' else ''}")
        if not refusal and not isinstance(text, str):
            raise TypeError(f"its content must be text, got {type(text).__name__}")
        listed = ((choice.get("logprobs") or {}).get("content") or [{}])[0].get("top_logprobs") or []
        return Answer(
            text=self._text(text) if isinstance(text, str) else None,
            refusal=self._text(refusal or None),
            top_logprobs=self._listed_tokens(listed),
            usage=_usage(body.get("usage")),
            model=self._text(body.get("model")),
            system_fingerprint=self._text(body.get("system_fingerprint")),
        )

    def _listed_tokens(self, listed: Sequence[Mapping[str, object]]) -> list[tuple[str, float]]:
        """(token, log-probability) of each listed token that is possible; a repeated entry counts once.

        Two tokens may have the same text ("Yes" with and without a space before it, which some servers strip). They
        have different log-probabilities and both count.
        """
        tokens: dict[tuple[str, float], None] = {}
        for entry in listed:
            token, value = self._text(entry["token"]) or "", entry["logprob"]
            if isinstance(value, bool) or not isinstance(value, int | float) or not value <= _ROUNDING:  # NaN is not <=
                shown = value if isinstance(value, float) else json.dumps(value)[:40]
                raise ValueError(
                    f"it gives {shown} as the log-probability of {token[:40]!r}; a log-probability is a number of at "
                    "most 0"
                )
            if value != -math.inf:
                tokens[token, float(value)] = None
        total = math.fsum(math.exp(value) for _, value in tokens)
        if total > math.exp(_ROUNDING):
            raise ValueError(f"it lists tokens whose probabilities add up to {total:.4f}; they can be 1 at most")
        return list(tokens)

    def _text(self, value: object) -> str | None:
        """A text without the key and without halves of surrogate pairs, which JSON can hold and no file can."""
        return None if value is None else self._hide(str(value).encode("utf-8", "replace").decode("utf-8"))

    def _hide(self, text: str) -> str:
        """A text without the key, unless that is a short word like any other."""
        return text.replace(self._key, GONE) if self._key and len(self._key) >= SHORTEST else text

    def _clean(self, text: str) -> str:
        """A message of the server without keys, in one bounded line."""
        return " ".join(_KEY_LIKE.sub(GONE, self._hide(text[: 10 * _MESSAGE])).split())[:_MESSAGE]


def _error_in(content: str) -> Mapping[str, object]:
    """``message`` and ``code`` of an error, where the body has them."""
    try:
        body = json.loads(content)
        error = body.get("error")
        return error if isinstance(error, dict) else {"message": str(error or body.get("message") or "")}
    except _NO_ANSWER:
        return {}


def _usage(usage: object) -> dict[str, int] | None:
    """The token counts; None where one of them is missing or implausible."""
    counts = (
        {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")} if isinstance(usage, dict) else {}
    )
    sound = {name: count for name, count in counts.items() if type(count) is int and 0 <= count < _MOST_TOKENS}
    return sound if len(sound) == 2 else None
