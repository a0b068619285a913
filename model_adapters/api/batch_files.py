"""Files of OpenAI's batch API: questions as lines of requests, and answers from the lines that come back.

The ``custom_id`` of a line is the key of its request (`request_key`), a digest of model, server, settings, prompt and
images: an answer is found in whatever order, and never taken for one to another question.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from ttmbench._util.console import warn
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters.api.answers import NO_ANSWER, Answer, message_of, read_answer, refusal_of, refused
from ttmbench.model_adapters.api.client import Body, Server

MOST_REQUESTS, MOST_BYTES = 50_000, 200_000_000  # in a file, as OpenAI documents them
SHOWN = 5  # lines or questions in a message


class BatchFiles:
    """Where requests go and answers are.

    Args:
        requests: a file to write; further ones, numbered, where one would be too large.
        answers: a file, or a folder of files ``*.jsonl``.
        url: of the requests.
    """

    def __init__(self, requests: str | None, answers: str | None, url: str) -> None:
        self.requests, self.answers = (
            None if name is None else Path(name).expanduser() for name in (requests, answers)
        )
        self._url = url
        self._written: set[str] = set()
        self._files: list[Path] = []
        self._room = (0, 0)  # requests and bytes that the last file has room for

    def write(self, requests: Iterable[tuple[str, Body]]) -> list[Path]:
        """Writes requests by key, each once a run, behind those of earlier tasks; returns all files of the run.

        UsageError if a file already exists or cannot be written.
        """
        try:
            for key, body in requests:
                if key in self._written:
                    continue
                line = json.dumps({"custom_id": key, "method": "POST", "url": self._url, "body": body}) + "\n"
                if self._room[0] < 1 or self._room[1] < len(line):
                    self._open_next()
                with self._files[-1].open("a", encoding="utf-8") as file:
                    file.write(line)
                self._room = (self._room[0] - 1, self._room[1] - len(line))
                self._written.add(key)
        except FileExistsError as error:
            raise UsageError(f"batch_requests: {error.filename} already exists; remove it or name another") from None
        except OSError as error:
            raise UsageError(f"batch_requests: {self.requests} cannot be written: {error.strerror}") from None
        return self._files

    def _open_next(self) -> None:
        assert self.requests is not None, "asked for"
        number = len(self._files) + 1
        path = self.requests if number == 1 else self.requests.with_suffix(f".{number}{self.requests.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("x").close()
        self._files.append(path)
        self._room = (MOST_REQUESTS, MOST_BYTES)

    @cached_property
    def _lines(self) -> dict[str, tuple[str, bytes]]:
        """The lines of answers by ``custom_id``, each with its place.

        DataError for what is not a line of answers, or two of one question.
        """
        assert self.answers is not None, "asked for"
        found: dict[str, tuple[str, bytes]] = {}
        for path in sorted(self.answers.glob("*.jsonl")) if self.answers.is_dir() else [self.answers]:
            try:
                lines = path.read_bytes().splitlines()
            except OSError as error:
                raise DataError(f"batch_answers: {path} cannot be read: {error.strerror}") from None
            for number, line in enumerate(lines, 1):
                place = f"{path} line {number}"
                key = _key_of(line, place) if line.strip() else None
                if key is not None and found.setdefault(key, (place, line))[1] != line:
                    raise DataError(f"batch_answers: {found[key][0]} and {place} answer the same question")
        return found

    def read(self, keys: Sequence[str], wants_logprobs: bool, server: Server) -> dict[str, Answer]:
        """The answers to these requests that are there; what is wrong with other lines about them is warned of."""
        answers, wrong = dict[str, Answer](), []
        for key in [key for key in keys if key in self._lines]:
            place, line = self._lines[key]
            try:
                answers[key] = _answer_in(json.loads(line), wants_logprobs, server.hide)
            except NO_ANSWER as error:
                wrong.append(f"{place}: {server.clean(f'{type(error).__name__}: {error}')}")
        if wrong:
            warn(f"{len(wrong)} answers in {self.answers} are errors, as if they were missing: {some(wrong)}")
        return answers


def some(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return "; ".join(texts[:SHOWN]) + (f"; {len(texts) - SHOWN} more" if len(texts) > SHOWN else "")


def _key_of(line: bytes, place: str) -> str:
    try:
        content = json.loads(line)
        key, is_request = content["custom_id"], "method" in content and "response" not in content
    except NO_ANSWER:
        raise DataError(f"batch_answers: {place} is not a line of a batch's output") from None
    if is_request or not isinstance(key, str):
        raise DataError(f"batch_answers: {place} is a request; the answers are in the file that the provider returns")
    return key


def _answer_in(line: Mapping[str, object], wants_logprobs: bool, clean: Callable[[str], str]) -> Answer:
    """The answer in a line of output; an error of `NO_ANSWER` says why there is none."""
    response, error = line.get("response"), line.get("error")
    if not isinstance(response, dict):
        said = error if isinstance(error, dict) else {}
        raise ValueError(f"it says {said.get('code') or 'no code'}: {said.get('message') or 'no message'}")
    status, content = int(response["status_code"]), json.dumps(response.get("body"))
    reason = refusal_of(status, content)
    if reason is not None:
        return refused(clean(reason))
    if status != 200:
        raise ValueError(f"it says {status}: {message_of(content)}")
    answer = read_answer(content, clean)
    if wants_logprobs and answer["refusal"] is None and not answer["top_logprobs"]:
        raise ValueError("it lists no log-probabilities of tokens, which VQAScore needs")
    return answer
