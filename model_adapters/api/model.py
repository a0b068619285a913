"""Questions to a chat model behind a server: looked up, estimated, asked at the same time, stored when answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING

from ttmbench._util.console import progress_bar, progress_iter, warn
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.model_adapters._shared.options import OPENAI, ServedOptions
from ttmbench.model_adapters.api.answers import Answer, AnswerCache, open_answers, request_key
from ttmbench.model_adapters.api.batch_files import BatchFiles, some
from ttmbench.model_adapters.api.client import Body, ChatClient, Dialect, Server
from ttmbench.model_adapters.api.costs import Account, money
from ttmbench.model_adapters.api.images import ImageStyle, image_digest, image_tokens

if TYPE_CHECKING:
    from PIL.Image import Image

VERSION = 1  # of the keys of stored answers
REMEMBERED = 4  # images whose digest and encoding are in memory
GRACE = 10.0  # seconds that an interrupted run waits for answers underway


class _Stopped(BaseException):
    """No further request is sent; not an Exception, which the client would try again after."""


@dataclass(frozen=True)
class Prompt:
    """One question: a text and its images, which are opened when they are taken."""

    text: str
    images: Sequence[Image]


class ChatModel:
    """Answers questions from the cache, and else from the server.

    Args:
        asked: the user's arguments.
        server: where to ask.
        parameters: of each request; they are part of the keys of stored answers.
        cache: file of stored answers.
    """

    def __init__(self, asked: ServedOptions, server: Server, parameters: Body, cache: Path) -> None:
        self.name, self.server, self.parameters = asked.model, server, parameters
        self.images = ImageStyle(asked.image_size, asked.image_format, asked.detail)
        self.account = Account(asked.price_in, asked.price_out, asked.max_cost)
        self._cache, self._concurrency, self._offline = cache, asked.concurrency, asked.offline
        self.served: set[str] = set()  # names of models in answers, with the fingerprint of the server's system
        self.models: set[str] = set()  # the same without the fingerprint
        self._dialect = Dialect()
        self._batch: BatchFiles | None = None
        if asked.batch_requests is not None or asked.batch_answers is not None:
            url = "/chat/completions" if server.api_version else "/v1/chat/completions"
            self._batch = BatchFiles(asked.batch_requests, asked.batch_answers, url)
            if asked.base_url == OPENAI:
                self._dialect.limit_name = "max_completion_tokens"  # which all its models take
        self._digests: deque[tuple[Image, str]] = deque(maxlen=REMEMBERED)
        self._encoded: dict[str, dict[str, object]] = {}

    def answers(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """One answer to each prompt, as `ChatClient.ask` gives it; equal prompts are asked once.

        Raises:
            TtmbenchError: the server does not answer, or the questions do not fit under the limit of costs.
        """
        with open_answers(self._cache) as cache:
            keys, questions, tokens = [], dict[str, tuple[Prompt, Body]](), 0.0
            for prompt in progress_iter(prompts, "looking up", "questions", len(prompts)):
                images = list(prompt.images)
                request = self._request(prompt.text, [self._digest(image) for image in images])
                keys.append(request_key(request))
                questions.setdefault(keys[-1], (prompt, request))
                sizes = [self.images.sent_size(image.size) for image in images]
                tokens += len(prompt.text) / 4 + 8 + sum(image_tokens(size, self.images.detail) for size in sizes)
            known = cache.get(questions)
            if self._batch is not None and self._batch.answers is not None:
                wanted = [key for key in questions if key not in known]
                for key, answer in self._batch.read(wanted, bool(self.parameters.get("logprobs")), self.server).items():
                    known[key] = answer
                    cache.put(key, questions[key][1], answer)
            for answer in known.values():
                self._note_served(answer)
                self.account.stored.add(answer["usage"])
            missing = {key: question for key, question in questions.items() if key not in known}
            if missing and self._batch is not None:
                raise self._left_to_batch(self._batch, missing, len(questions))
            if missing:
                self.account.estimate = (tokens / len(prompts), self.parameters["max_tokens"])
                self._announce(len(questions), len(missing))
                known |= self._ask(cache, missing)
        return [known[key] for key in keys]

    def _left_to_batch(self, batch: BatchFiles, missing: dict[str, tuple[Prompt, Body]], of: int) -> DataError:
        """What is to be done about questions without an answer; they are written if that was asked for."""
        if batch.requests is None:
            shown = some([repr(prompt.text) for prompt, _ in missing.values()])
            return DataError(
                f"{batch.answers} has no answer to {len(missing)} of {of} questions of this task and this model: "
                f"{shown}; batch_requests=FILE writes these alone (answers so far are stored)"
            )
        written = progress_iter(missing.items(), "writing", "requests", len(missing))
        files = batch.write((key, self._dialect.translated(self._body(*question))) for key, question in written)
        return DataError(
            f"{len(missing)} questions are written to {' '.join(map(str, files))}, and none is scored yet: send them "
            "as a batch, then run the same command with batch_answers=OUTPUT in place of batch_requests "
            "(--on_error continue goes on with the questions of further tasks)"
        )

    def _ask(self, cache: AnswerCache, missing: dict[str, tuple[Prompt, Body]]) -> dict[str, Answer]:
        """Asks, the first question alone, since its error is likely that of all; answers underway are never lost."""
        fresh, left, running = dict[str, Answer](), iter(missing), dict[Future[Answer], str]()
        stopping, lock = Event(), Lock()

        def before(_: object) -> None:
            if stopping.is_set():
                raise _Stopped
            with lock:
                self.account.requests += 1

        def keep(future: Future[Answer]) -> None:
            key = running.pop(future)
            fresh[key] = answer = future.result()
            cache.put(key, missing[key][1], answer)
            self._note_served(answer)
            self.account.asked.add(answer["usage"])
            shown.update(1)

        pool, client = ThreadPoolExecutor(self._concurrency), self.server.client(before)
        ask = ChatClient(self.server, client, self._dialect).ask
        with progress_bar(len(missing), f"asking {self.name}", "questions") as shown:
            try:
                while True:
                    most = self._concurrency if fresh else 1
                    while len(running) < most and self.account.has_room(len(running)):
                        if (key := next(left, None)) is None:
                            break
                        running[pool.submit(ask, self._body(*missing[key]))] = key
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
                f"stopped before max_cost={self.account.max_cost:g}: {len(fresh)} of {len(missing)} questions were "
                f"asked for {money(self.account.cost)}. Their answers are stored; a rerun with a higher max_cost asks "
                "the rest"
            )
        return fresh

    def _request(self, text: str, digests: list[str]) -> Body:
        """Everything that an answer depends on; its digest is the key in the cache."""
        return {
            "version": VERSION,
            "model": self.name,
            "server": self.server.identity,
            "prompt": text,
            "pictures": digests,
            "sent_as": self.images.describe(),
            **self.server.declared,
            **self.parameters,
        }

    def _body(self, prompt: Prompt, request: Body) -> Body:
        parts = []
        for position, digest in enumerate(request["pictures"]):
            if digest not in self._encoded:
                while len(self._encoded) >= REMEMBERED:
                    self._encoded.pop(next(iter(self._encoded)))
                self._encoded[digest] = self.images.part(prompt.images[position])
            parts.append(self._encoded[digest])
        content = [*parts, {"type": "text", "text": prompt.text}]
        parameters = {name: value for name, value in self.parameters.items() if value is not None}
        return {"model": self.name, "messages": [{"role": "user", "content": content}], **parameters}

    def _digest(self, image: Image) -> str:
        """Digest of an image; those of the last few are remembered."""
        for seen, digest in self._digests:
            if seen is image:
                return digest
        digest = image_digest(image)
        self._digests.append((image, digest))
        return digest

    def _announce(self, total: int, missing: int) -> None:
        if self._offline:
            raise DataError(f"{missing} of {total} answers are not stored, and --offline does not ask for them")
        each, out = self.account.estimate
        cost = self.account.price(missing * each, missing * out)
        warn(
            f"{self.name}: {missing} of {total} questions to ask, about {missing * each:,.0f} tokens in and "
            f"at most {missing * out:,} out, estimated cost {money(cost)}"
        )

    def _note_served(self, answer: Answer) -> None:
        if answer["model"]:
            self.models.add(answer["model"])
            self.served.add(" ".join(filter(None, (answer["model"], answer["system_fingerprint"]))))
