"""Questions to a chat model behind a server: looked up, estimated, asked at the same time, stored when answered."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, cast

from ttmbench._util.console import progress_bar, warn
from ttmbench._util.file_io import json_digest
from ttmbench._util.images import resized
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.model_adapters._shared.options import OpenaiOptions
from ttmbench.model_adapters.api.server import Answer, Body, Server

if TYPE_CHECKING:
    from PIL.Image import Image

_TABLE = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL, sha256 TEXT NOT NULL)"


@contextmanager
def open_answers(path: Path) -> Iterator[AnswerStore]:
    """Stored answers in one SQLite file, which several processes may use at once; UsageError if it cannot be used."""
    connection = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", _TABLE):
            connection.execute(statement)
        yield AnswerStore(connection, path)
    except (OSError, sqlite3.Error) as error:
        raise UsageError(f"answers cannot be stored in {path}: {error}; choose another file with cache=PATH") from None
    finally:
        if connection is not None:
            connection.close()


class AnswerStore:
    """Answers by the key of their request, in an open file."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def get(self, keys: Iterable[str]) -> dict[str, Answer]:
        """The stored answers, by key; damaged ones are reported and skipped."""
        answers, damaged = dict[str, Answer](), 0
        for key in keys:
            row = self._connection.execute("SELECT answer, sha256 FROM answers WHERE key = ?", [key]).fetchone()
            if row is not None and _digest(key, row[0]) != row[1]:
                damaged += 1
            elif row is not None:
                answers[key] = cast(Answer, json.loads(row[0]))
        if damaged:
            warn(f"{damaged} of the answers in {self._path} do not match their digest; they are asked for again")
        return answers

    def put(self, key: str, answer: Answer) -> None:
        """Stores an answer; it is on the disk when this returns."""
        text = json.dumps(answer, ensure_ascii=False)
        row = (key, text, _digest(key, text))
        self._connection.execute("INSERT OR REPLACE INTO answers (key, answer, sha256) VALUES (?, ?, ?)", row)


def _digest(key: str, answer: str) -> str:
    return hashlib.sha256(f"{key}:{answer}".encode()).hexdigest()


VERSION = 1  # of the keys of stored answers
JPEG_QUALITY = 95
MILLION = 1_000_000
GRACE = 10.0  # seconds that an interrupted run waits for answers underway
SHOWN = 5  # texts in a message


class _Stopped(BaseException):
    """No further request is sent; not an Exception, which the client would try again after."""


@dataclass(frozen=True)
class Prompt:
    """One question: a text and its images, which are opened when they are taken."""

    text: str
    images: Sequence[Image]


@dataclass
class Tokens:
    """A sum over answers; ``uncounted`` answers came without token counts."""

    answers: int = 0
    sent: int = 0
    received: int = 0
    uncounted: int = 0

    def add(self, usage: Mapping[str, int] | None) -> None:
        """Adds one answer's ``usage`` as the server states it."""
        self.answers += 1
        self.uncounted += usage is None
        self.sent += (usage or {}).get("prompt_tokens", 0)
        self.received += (usage or {}).get("completion_tokens", 0)


@dataclass
class Account:
    """Requests and costs of a run, in dollars or whatever the server bills in."""

    asked_for: OpenaiOptions  # prices of a million tokens, and the limit
    requests: int = 0  # retries included
    asked: Tokens = field(default_factory=Tokens)
    stored: Tokens = field(default_factory=Tokens)  # of answers that were stored before
    estimate: tuple[float, float] = (0.0, 0.0)  # tokens sent and received that one question is expected to take

    def price(self, sent: float, received: float) -> float | None:
        """The price of tokens; None if a price is unknown."""
        price_in, price_out = self.asked_for.price_in, self.asked_for.price_out
        return None if price_in is None or price_out is None else (sent * price_in + received * price_out) / MILLION

    @property
    def cost(self) -> float | None:
        """Cost of this run's answers, by the estimate where a count is missing."""
        counted, (sent, received) = self.asked, self.estimate
        return self.price(counted.sent + counted.uncounted * sent, counted.received + counted.uncounted * received)

    def has_room(self, underway: int) -> bool:
        """Whether one more question fits under the limit, beside those underway."""
        most, cost = self.asked_for.max_cost, self.cost
        if most is None or cost is None:
            return True
        counted = max(1, self.asked.answers - self.asked.uncounted)
        mean = (self.price(self.asked.sent, self.asked.received) or 0.0) / counted
        return cost + (underway + 1) * max(self.price(*self.estimate) or 0.0, mean) <= most

    def report(self) -> dict[str, object]:
        """For the results document; money in the currency of the prices, None if they are unknown."""
        return {
            "requests": self.requests,
            "answers": self.asked.answers,
            "answers_without_count": self.asked.uncounted,
            "prompt_tokens": self.asked.sent,
            "completion_tokens": self.asked.received,
            "cost": self.cost,
            "stored_answers": self.stored.answers,
            "stored_cost": self.price(self.stored.sent, self.stored.received),
            "price_in": self.asked_for.price_in,
            "price_out": self.asked_for.price_out,
        }


class ChatModel:
    """Answers questions from a file of stored answers, and else from the server; ``parameters`` are in the keys."""

    def __init__(self, asked: OpenaiOptions, server: Server, parameters: Body, store: Path) -> None:
        self.asked, self.server, self.parameters, self._store = asked, server, parameters, store
        self.account = Account(asked)
        self.served: set[str] = set()  # names of models in answers, with the fingerprint of the server's system
        self.models: set[str] = set()  # the same without the fingerprint

    def answers(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """One answer to each prompt; equal ones are asked once. TtmbenchError without one, or beyond the costs."""
        with open_answers(self._store) as store:
            keys, questions, tokens = [], dict[str, Prompt](), 0.0
            for prompt in progress_bar(len(prompts), "looking up", "questions", prompts):
                images = list(prompt.images)
                digests = list(map(image_digest, images))
                keys.append(self._key(prompt.text, digests))
                questions.setdefault(keys[-1], prompt)
                tokens += len(prompt.text) / 4 + 8 + sum(image_tokens(image.size, self.asked) for image in images)
            known = store.get(questions)
            for answer in known.values():
                self._note_served(answer)
                self.account.stored.add(answer["usage"])
            missing = {key: question for key, question in questions.items() if key not in known}
            if missing:
                self.account.estimate = (tokens / len(prompts), self.parameters["max_tokens"])
                self._announce(len(questions), len(missing))
                known |= self._ask(store, missing)
        return [known[key] for key in keys]

    def pictures(self) -> dict[str, object]:
        """How images are sent: entries of fingerprints and of the keys of stored answers."""
        asked = self.asked
        quality = {"quality": JPEG_QUALITY, "subsampling": "4:4:4"} if asked.image_format == "jpeg" else {}
        resampling = "lanczos" if asked.image_size else None
        return {
            **{"longest_side": asked.image_size, "resampling": resampling, "format": asked.image_format},
            **quality,
            "detail": asked.detail,
        }

    def _ask(self, store: AnswerStore, missing: dict[str, Prompt]) -> dict[str, Answer]:
        """Asks, the first question alone, since its error is likely that of all; answers underway are never lost."""
        fresh, left, running = dict[str, Answer](), iter(missing), dict[Future[Answer], str]()
        stopping, lock, most = Event(), Lock(), self.asked.concurrency

        def before(_: object) -> None:
            if stopping.is_set():
                raise _Stopped
            with lock:
                self.account.requests += 1

        def keep(future: Future[Answer]) -> None:
            key = running.pop(future)
            fresh[key] = answer = future.result()
            store.put(key, answer)
            self._note_served(answer)
            self.account.asked.add(answer["usage"])
            shown.update(1)

        pool, client = ThreadPoolExecutor(most), self.server.client(before)
        with progress_bar(len(missing), f"asking {self.asked.model}", "questions") as shown:
            try:
                while True:
                    while len(running) < (most if fresh else 1) and self.account.has_room(len(running)):
                        if (key := next(left, None)) is None:
                            break
                        running[pool.submit(self.server.ask, client, self._body(missing[key]))] = key
                    if not running:
                        break
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        keep(future)
            except BaseException:
                stopping.set()
                for future in wait(running, GRACE).done:
                    with suppress(BaseException):
                        keep(future)
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                if not running:
                    client.close()
        if len(fresh) < len(missing):
            raise TtmbenchError(
                f"stopped before max_cost={self.asked.max_cost:g}: {len(fresh)} of {len(missing)} questions were asked "
                f"for {money(self.account.cost)}. Their answers are stored; a rerun with a higher max_cost asks on"
            )
        return fresh

    def _key(self, text: str, digests: list[str]) -> str:
        """Digest of everything that an answer depends on."""
        own = {"version": VERSION, "model": self.asked.model, "server": self.server.identity}
        question = {"prompt": text, "pictures": digests, "sent_as": self.pictures()}
        return json_digest({**own, **question, **self.server.declared, **self.parameters})

    def _body(self, prompt: Prompt) -> Body:
        content = [*(image_part(image, self.asked) for image in prompt.images), {"type": "text", "text": prompt.text}]
        parameters = {name: value for name, value in self.parameters.items() if value is not None}
        return {"model": self.asked.model, "messages": [{"role": "user", "content": content}], **parameters}

    def _announce(self, total: int, missing: int) -> None:
        if self.asked.offline:
            raise DataError(f"{missing} of {total} answers are not stored, and --offline does not ask for them")
        each, out = self.account.estimate
        cost = self.account.price(missing * each, missing * out)
        warn(
            f"{self.asked.model}: {missing} of {total} questions to ask, about {missing * each:,.0f} tokens in and "
            f"at most {missing * out:,} out, estimated cost {money(cost)}"
        )

    def _note_served(self, answer: Answer) -> None:
        if answer["model"]:
            self.models.add(answer["model"])
            self.served.add(" ".join(filter(None, (answer["model"], answer["system_fingerprint"]))))


def sent_size(size: tuple[int, int], most: int | None) -> tuple[int, int]:
    """Width and height of an image when it is sent: larger ones are made smaller.

    >>> sent_size((1024, 768), 512), sent_size((100, 50), 512)
    ((512, 384), (100, 50))
    """
    longest = max(size)
    if most is None or longest <= most:
        return size
    return max(1, round(size[0] * most / longest)), max(1, round(size[1] * most / longest))


def image_digest(image: Image) -> str:
    """sha256 of size and pixels: the same for every file format that decodes to them."""
    head = f"{image.width}x{image.height}:{image.mode}:".encode()
    return hashlib.sha256(head + image.tobytes()).hexdigest()


def image_part(image: Image, asked: OpenaiOptions) -> dict[str, object]:
    """An image as a part of a chat message."""
    from PIL import Image as Pillow

    size, form = sent_size(image.size, asked.image_size), asked.image_format
    sent = image if size == image.size else resized(image, size, Pillow.Resampling.LANCZOS)
    buffer = io.BytesIO()
    options: dict[str, int] = {"quality": JPEG_QUALITY, "subsampling": 0} if form == "jpeg" else {}
    sent.convert("RGB").save(buffer, form.upper(), **options)
    url = f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
    return {"type": "image_url", "image_url": {"url": url, **({"detail": asked.detail} if asked.detail else {})}}


def image_tokens(size: tuple[int, int], asked: OpenaiOptions) -> int:
    """About how many tokens an image costs, by the rule of GPT-4o and GPT-4.1: 85, and 170 for each tile of 512 px."""
    if asked.detail == "low":
        return 85
    width, height = sent_size(size, asked.image_size)
    shrink = min(1.0, 2048 / max(width, height), 768 / min(width, height))
    return 85 + 170 * math.ceil(width * shrink / 512) * math.ceil(height * shrink / 512)


def money(amount: float | None) -> str:
    """Dollars, rounded for reading.

    >>> money(1.5), money(0.00042), money(None)
    ('$1.50', '$0.00042', 'unknown (give price_in and price_out)')
    """
    if amount is None:
        return "unknown (give price_in and price_out)"
    return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.2g}"


def some(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return "; ".join(texts[:SHOWN]) + (f"; {len(texts) - SHOWN} more" if len(texts) > SHOWN else "")
