"""Questions to a chat model behind a server: looked up, estimated, asked in one pool, stored as they are answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ttmbench._util.console import progress_bar, progress_iter, warn
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.model_adapters._shared.served_options import OPENAI, ServedOptions
from ttmbench.model_adapters.api.answers import Answer, AnswerCache, open_answers, request_key
from ttmbench.model_adapters.api.batch_files import BatchFiles
from ttmbench.model_adapters.api.client import Body, ChatClient, Dialect, Server
from ttmbench.model_adapters.api.costs import Account, money
from ttmbench.model_adapters.api.images import ImageStyle, image_digest, image_tokens
from ttmbench.model_adapters.api.pool import Pool, run_async

if TYPE_CHECKING:
    from PIL.Image import Image

VERSION = 1  # of the keys of stored answers
SHOWN = 5  # lines or questions in a message
REMEMBERED = 4  # images whose digest and encoding are in memory


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
        self.listed: int | None = None  # the most tokens that an answer lists, if fewer than were asked for
        self._dialect = Dialect()
        self._batch: BatchFiles | None = None
        if asked.batch_requests is not None or asked.batch_answers is not None:
            paths = (
                None if name is None else Path(name).expanduser()
                for name in (asked.batch_requests, asked.batch_answers)
            )
            self._batch = BatchFiles(*paths, "/chat/completions" if server.api_version else "/v1/chat/completions")
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
            requests, estimate = [], 0.0
            for prompt in progress_iter(prompts, "looking up", "questions", len(prompts)):
                images = list(prompt.images)
                requests.append(self._request(prompt.text, [self._digest(image) for image in images]))
                estimate += self._tokens_in(prompt.text, images)
            keys = [request_key(request) for request in requests]
            known = cache.get(keys)
            if self._batch is not None and self._batch.answers is not None:
                known |= self._from_batch(self._batch, cache, requests, [key for key in keys if key not in known])
            for answer in known.values():
                self._note_served(answer)
                self.account.stored.add(answer.get("usage"))
            first = {key: index for index, key in reversed(list(enumerate(keys)))}
            missing = [index for key, index in sorted(first.items(), key=lambda item: item[1]) if key not in known]
            if missing:
                if self._batch is not None:
                    raise self._left_to_batch(self._batch, prompts, requests, keys, missing)
                self.account.estimate = (estimate / len(prompts), self.parameters["max_tokens"])
                self._announce(len(first), len(missing), estimate / len(prompts))
                known.update(self._ask(cache, prompts, requests, keys, missing))
        return [known[key] for key in keys]

    def _from_batch(
        self, batch: BatchFiles, cache: AnswerCache, requests: Sequence[Body], wanted: Sequence[str]
    ) -> dict[str, Answer]:
        """Answers in the batch's output, which are stored from now on; what is wrong with others is warned of."""
        answers, wrong = batch.read(wanted, bool(self.parameters.get("logprobs")), self.server)
        request_of = {request_key(request): request for request in requests}
        for key, answer in answers.items():
            cache.put(key, request_of[key], answer)
        if wrong:
            warn(f"{len(wrong)} answers in {batch.answers} are errors, as if they were missing: {_first(wrong)}")
        return answers

    def _left_to_batch(
        self,
        batch: BatchFiles,
        prompts: Sequence[Prompt],
        requests: Sequence[Body],
        keys: Sequence[str],
        missing: Sequence[int],
    ) -> DataError:
        """What is to be done about questions without an answer; they are written if that was asked for."""
        if batch.requests is None:
            shown = [repr(prompts[index].text) for index in missing]
            return DataError(
                f"{batch.answers} has no answer to {len(missing)} of {len(set(keys))} questions of this task and this "
                f"model: {_first(shown)}; batch_requests=FILE writes these alone (answers so far are stored)"
            )
        bodies = (
            (keys[index], self._dialect.translated(self._body(prompts[index], requests[index]["pictures"])))
            for index in progress_iter(missing, "writing", "requests", len(missing))
        )
        files = batch.write(bodies)
        return DataError(
            f"{len(missing)} questions are written to {' '.join(map(str, files))}, and none is scored yet: send them "
            "as a batch, then run the same command with batch_answers=OUTPUT in place of batch_requests "
            "(--on_error continue goes on with the questions of further tasks)"
        )

    def _ask(
        self,
        cache: AnswerCache,
        prompts: Sequence[Prompt],
        requests: Sequence[Body],
        keys: Sequence[str],
        missing: Sequence[int],
    ) -> dict[str, Answer]:
        fresh: dict[str, Answer] = {}

        def count() -> None:
            self.account.requests += 1

        async def main() -> None:
            pool, opening = Pool(self._concurrency), asyncio.Lock()
            async with ChatClient(self.server, pool.sleep, count, self._dialect) as client:

                async def work(job: int) -> None:
                    index = missing[job]
                    self.account.underway += 1
                    answer = None
                    try:
                        async with opening:  # images are opened and encoded one after the other, beside the requests
                            body = await asyncio.to_thread(self._body, prompts[index], requests[index]["pictures"])
                        answer = await client.ask(body)
                        cache.put(keys[index], requests[index], answer)
                        fresh[keys[index]] = answer
                        self._note_served(answer)
                    finally:
                        self.account.underway -= 1
                        if answer is not None:
                            self.account.asked.add(answer["usage"])
                            shown.update(1)

                await pool.run(len(missing), work, lambda: self.account.has_room)

        with progress_bar(len(missing), f"asking {self.name}", "questions") as shown:
            run_async(main)
        if len(fresh) < len(missing):
            raise TtmbenchError(
                f"stopped before {self.account.limit}: {len(fresh)} of {len(missing)} questions were "
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

    def _body(self, prompt: Prompt, digests: Sequence[str]) -> Body:
        parts = []
        for position, digest in enumerate(digests):
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

    def _tokens_in(self, text: str, images: Sequence[Image]) -> float:
        sizes = [self.images.sent_size(image.size) for image in images]
        return len(text) / 4 + 8 + sum(image_tokens(size, self.images.detail) for size in sizes)

    def _announce(self, total: int, missing: int, each: float) -> None:
        if self._offline:
            raise DataError(f"{missing} of {total} answers are not stored, and --offline does not ask for them")
        out = self.parameters["max_tokens"]
        cost = self.account.price(missing * each, missing * out)
        warn(
            f"{self.name}: {missing} of {total} questions to ask, about {missing * each:,.0f} tokens in and "
            f"at most {missing * out:,} out, estimated cost {money(cost)}"
        )

    def _note_served(self, answer: Answer) -> None:
        asked = answer.get("top_logprobs_asked")
        if asked is not None:
            self.listed = asked if self.listed is None else min(asked, self.listed)
        if answer.get("model"):
            self.models.add(str(answer["model"]))
            self.served.add(" ".join(filter(None, (str(answer["model"]), answer.get("system_fingerprint")))))


def _first(texts: Sequence[str]) -> str:
    more = f"; {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more
