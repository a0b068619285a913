"""A chat-completions server on this machine that misbehaves when told to, and counts what it is asked."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from support.web_server import LocalServer

Json = dict  # of a request or an answer


class ChatServer(LocalServer):
    """Answers by a digest of prompt and images, so that the same question always has the same answer.

    ``fault`` maps the number of a request (from 0) to what goes wrong with it, None for nothing; ``delay`` is how long
    an answer takes; ``before`` is called with the number of the request before it is answered; ``names`` maps that
    number to the model that the answer names.
    """

    def __init__(self) -> None:
        self.fault: Callable[[int], str | None] = lambda number: None
        self.before: Callable[[int], None] = lambda number: None
        self.delay = 0.0
        self.usage: dict[str, int] | None = {"prompt_tokens": 300, "completion_tokens": 1}
        self.words: Callable[[str, list[bytes]], str] = lambda prompt, images: "A"
        self.listed: Callable[[float], list[tuple[str, float]]] = yes_and_no
        self.names: Callable[[int], str] = lambda number: "test-model-served"
        self.lists_at_most = 1000
        self.forget()
        self._start()

    def forget(self) -> None:
        """Counts anew."""
        self.requests: list[Json] = []
        self.authorizations: set[str | None] = set()
        self.api_keys: set[str | None] = set()
        self.paths: set[str] = set()
        self.answered: Counter[str] = Counter()
        self._lock = threading.Lock()

    def _start(self) -> None:
        super().__init__()
        self.url += "/v1"
        self.__enter__()

    def stop(self) -> None:
        self.__exit__()

    def restart(self) -> None:
        """Again, on another port."""
        self.fault = lambda number: None
        self._start()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            self.authorizations.add(handler.headers.get("authorization"))
            self.api_keys.add(handler.headers.get("api-key"))
            self.paths.add(handler.path)
        self.before(number)
        time.sleep(self.delay)
        self._reply(handler, body, self.fault(number), self.names(number))

    def _reply(self, handler: BaseHTTPRequestHandler, body: Json, fault: str | None, name: str) -> None:
        if fault == "drop":
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault == "slow":
            time.sleep(4)
        if fault in ANSWERS:
            return self._send(handler, *ANSWERS[fault], {"retry-after-ms": "10"})
        if fault is not None and fault.startswith("echo "):
            status = fault.removeprefix("echo ")
            key = (handler.headers.get("authorization") or "").removeprefix("Bearer ")
            said = f"you sent {key} to {handler.path}"
            words = {"message": {"role": "assistant", "content": said, "refusal": None}, "finish_reason": said}
            answer = {"error": {"message": said}} if status != "200" else {"model": said, "choices": [words]}
            return self._send(handler, int(status), answer)
        asked = body.get("top_logprobs") or 0
        if asked > self.lists_at_most:
            said = f"Requested sample logprobs of {asked}, max allowed: {self.lists_at_most}"
            return self._send(handler, 400, {"error": {"message": said}})
        if fault == "key":
            said = f"Incorrect API key provided: {handler.headers.get('authorization')}"
            return self._send(handler, 401, {"error": {"message": said, "code": "invalid_api_key"}})
        if fault == "other name" and "max_tokens" in body:
            return self._send(handler, 400, {"error": {"message": "use 'max_completion_tokens' instead"}})
        answer = {**self._answer(body, fault), "model": name}
        if fault != "slow":
            with self._lock:
                self.answered[question_of(body)] += 1
        self._send(handler, 200, answer)

    def _answer(self, body: Json, fault: str | None) -> Json:
        prompt, images = parts_of(body)
        message: Json = {"role": "assistant", "content": self.words(prompt, images), "refusal": None}
        choice: Json = {"index": 0, "message": message, "finish_reason": "stop"}
        if fault == "refusal":
            message.update(content=None, refusal="I cannot help with that.")
        elif body.get("logprobs") and fault != "no logprobs":
            share = int(hashlib.sha256(question_of(body).encode()).hexdigest()[:8], 16) / 2**32
            listed = [{"token": token, "logprob": value} for token, value in self.listed(share)]
            listed = listed[: body["top_logprobs"]]
            message["content"] = listed[0]["token"]
            choice["logprobs"] = {"content": [{**listed[0], "top_logprobs": listed}]}
        answer = {"id": "x", "object": "chat.completion", "choices": [choice]}
        return {**answer, **({"usage": self.usage} if self.usage else {})}

    def _send(
        self, handler: BaseHTTPRequestHandler, status: int, content, headers: dict[str, str] | None = None
    ) -> None:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        named = {"content-type": "application/json", **(headers or {}), "content-length": str(len(data))}
        self.send(handler, status, named)
        handler.wfile.write(data)


def _listing(*values: str) -> str:
    """A chat completion, as text, that lists the token "Yes" with these log-probabilities."""
    listed = ", ".join(f'{{"token": "Yes", "logprob": {value}}}' for value in values)
    return (
        '{"choices": [{"message": {"content": "Yes"}, "finish_reason": "stop", "logprobs": {"content": [{"top_logprobs"'
        f": [{listed}]}}]}}}}]}}"
    )


BODIES = {
    "NaN": _listing("NaN"),
    "infinite": _listing("Infinity"),
    "above 0": _listing("0.7"),
    "false": _listing("false"),
    "text": _listing('"-0.5"'),
    "sum above 1": _listing("-0.1", "-0.2"),
    "null": '{"choices": [{"message": {"content": null}, "finish_reason": "length"}]}',
    "deep": "[" * 100_000,
}
"""Unusable answers with status 200."""


def _error(message: str, **more: str) -> Json:
    return {"error": {"message": message, **more}}


ANSWERS: dict[str | None, tuple[int, str | Json]] = {  # fault -> status and body
    **{status: (int(status), _error("later, please")) for status in ("429", "500", "503")},
    **{status: (int(status), _error("not so")) for status in ("400", "404")},
    **{fault: (200, body) for fault, body in BODIES.items()},
    "malformed": (200, '{"choices": [{"message": '),
    "strange": (200, {"object": "list", "data": []}),
    "policy": (400, _error("not this one", code="content_policy_violation")),
    "quota": (429, _error("no credit", code="insufficient_quota")),
    "no such parameter": (400, _error("logprobs are not supported with this model")),
}


def yes_and_no(share: float) -> list[tuple[str, float]]:
    """Tokens of an answer that says yes with a probability between 5 and 95 percent, in several spellings."""
    yes = 0.05 + 0.9 * share
    return [("Yes", math.log(yes * 0.75)), (" yes", math.log(yes * 0.25)), ("No", math.log(1 - yes)), ("The", -12.0)]


def parts_of(body: Json) -> tuple[str, list[bytes]]:
    """The text of a request and the bytes of its images."""
    content = body["messages"][0]["content"]
    text = "".join(part["text"] for part in content if part["type"] == "text")
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    return text, [base64.b64decode(url.partition(",")[2]) for url in urls]


def question_of(body: Json) -> str:
    """What tells questions apart."""
    text, images = parts_of(body)
    return text + "".join(hashlib.sha256(image).hexdigest() for image in images)
