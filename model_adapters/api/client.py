"""Asks an OpenAI-compatible server by the package openai, which retries; adapts to the server; never shows the key."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import openai

from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.model_adapters.api.answers import NO_ANSWER, Answer, message_of, read_answer, refusal_of, refused

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


@dataclass(frozen=True, repr=False)
class Server:
    """Where and how to ask; fields as in `ServedOptions`, and the key, None for servers without one."""

    base_url: str
    key: str | None
    timeout: float = 60.0
    retries: int = 8
    api_version: str | None = None

    @property
    def identity(self) -> str:
        """Host and path, without the port: part of the keys of stored answers."""
        url = urlsplit(self.base_url)
        return f"{url.hostname}{url.path.rstrip('/')}"

    @property
    def declared(self) -> dict[str, str]:
        """Further entries of fingerprints and of the keys of stored answers."""
        return {"api_version": self.api_version} if self.api_version else {}

    @property
    def headers(self) -> dict[str, Any]:
        """Of each request, beside the package's own; Azure's dated versions have another one for the key."""
        if self.key and not self.api_version:
            return {}
        return {"Authorization": openai.omit, **({"api-key": self.key} if self.key else {})}

    def client(self, before: Callable[[object], None]) -> openai.OpenAI:
        """A client, which calls ``before`` at each request."""
        return openai.OpenAI(
            api_key=self.key or "none",  # which is then not sent
            base_url=self.base_url,
            timeout=self.timeout,
            max_retries=self.retries,
            default_query={"api-version": self.api_version} if self.api_version else None,
            http_client=openai.DefaultHttpxClient(event_hooks={"request": [before]}),
        )

    def hide(self, text: str) -> str:
        """A text of the server without the key, unless that is a short word like any other."""
        return text.replace(self.key, GONE) if self.key and len(self.key) >= SHORTEST else text

    def clean(self, text: str) -> str:
        """A message of the server without the key, in one bounded line."""
        return " ".join(_KEY_LIKE.sub(GONE, self.hide(text[: 10 * _MESSAGE])).split())[:_MESSAGE]


@dataclass
class Dialect:
    """How a server is asked, learnt during a run.

    Attributes:
        limit_name: of the parameter that limits the answer.
        lists_tokens: whether an answer with log-probabilities came: then one without is an accident.
    """

    limit_name: str = "max_tokens"
    lists_tokens: bool = False

    def translated(self, body: Body) -> Body:
        """A request in the words that the server takes."""
        return {self.limit_name if name == "max_tokens" else name: value for name, value in body.items()}


class ChatClient:
    """One client for all questions of a task.

    Args:
        server: where to ask.
        client: of it.
        dialect: learnt during earlier tasks; what is learnt is added.
    """

    def __init__(self, server: Server, client: openai.OpenAI, dialect: Dialect) -> None:
        self._server, self._client, self._dialect = server, client, dialect

    def ask(self, body: Body) -> Answer:
        """The answer, which may be a refusal.

        Raises:
            DataError: the server cannot be reached, does not accept the key, or gives unusable answers.
            UsageError: the model does not exist, or gives no log-probabilities.
            TtmbenchError: the server does not take the request.
        """
        problem = ""
        for attempt in range(TRIES):
            try:
                content = self._post(body)
            except openai.APIStatusError as error:
                return self._refused(error, body)
            except openai.APIConnectionError as error:
                raise DataError(self._unanswered(self._reason(error))) from None
            try:
                answer = read_answer(content, self._server.hide)
            except NO_ANSWER as error:
                detail = self._server.clean(f"{type(error).__name__}: {error}")
                problem = f"its answer is not what a chat-completions server gives ({detail})"
                continue
            self._dialect.lists_tokens |= bool(answer["top_logprobs"])
            if not body.get("logprobs") or answer["refusal"] is not None or answer["top_logprobs"]:
                return answer
            problem = f"model {body['model']} {_NO_LOGPROBS}"
            if attempt and not self._dialect.lists_tokens:
                raise UsageError(problem)
        raise DataError(f"{self._server.identity} gives no usable answer: {problem}. It was not stored")

    def _post(self, body: Body) -> str:
        """The body of the response to a request in the server's words."""
        while True:
            sent = self._dialect.translated(body)
            try:
                # As ``extra_body``: servers take more parameters than the package knows.
                return self._client.chat.completions.with_raw_response.create(
                    model=sent["model"],
                    messages=sent["messages"],
                    extra_headers=self._server.headers,
                    extra_body=sent,
                ).text
            except openai.APIStatusError as error:
                if "max_tokens" not in sent or "max_completion_tokens" not in error.response.text:
                    raise
                self._dialect.limit_name = "max_completion_tokens"

    def _refused(self, error: openai.APIStatusError, body: Body) -> Answer:
        """The answer for a refusal of the question's content; other errors are raised."""
        status, content = error.status_code, error.response.text
        reason, message = refusal_of(status, content), self._server.clean(message_of(content))
        if reason is not None:
            return refused(self._server.clean(reason))
        detail = f"{self._server.identity} says {status}: {message}"
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

    def _reason(self, error: openai.APIConnectionError) -> str:
        if isinstance(error, openai.APITimeoutError):
            return f"no answer within {self._server.timeout:g} s (timeout=...)"
        cause = error.__cause__ or error
        return f"{type(cause).__name__}: {self._server.clean(str(cause))}".rstrip(": .")

    def _unanswered(self, problem: str) -> str:
        tries = self._server.retries + 1
        return (
            f"{self._server.identity} did not answer in {tries} tries: {problem}. Answers so far are stored, so a "
            "rerun asks for the rest"
        )
