"""Any question to a chat model behind a server: looked up, estimated, asked in one pool, and kept as it is answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ttmbench._util.console import progress_bar, progress_iter, warn
from ttmbench._util.rate_limit import shared_pauses
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.model_adapters.api.answers import Answer
from ttmbench.model_adapters.api.cache import AnswerCache, OpenAnswerCache, request_key
from ttmbench.model_adapters.api.client import ChatClient, Server
from ttmbench.model_adapters.api.costs import Account, money
from ttmbench.model_adapters.api.dialect import Dialect
from ttmbench.model_adapters.api.images import ImageStyle, image_digest, image_tokens
from ttmbench.model_adapters.api.pool import Pool, run_async

if TYPE_CHECKING:
    from PIL.Image import Image

Request = dict[str, Any]  # all that an answer depends on
VERSION = 1  # of what a key is made of
REMEMBERED = 4  # images of which digest and encoding are at hand


@dataclass(frozen=True)
class ChatSettings:
    """What a model is asked with; everything here changes answers and is in every key.

    Attributes:
        model: as the server calls it.
        parameters: of the request: ``max_tokens``, ``temperature``, ``logprobs``, ``top_logprobs``.
        images: how they are sent.
    """

    model: str
    parameters: dict[str, Any]
    images: ImageStyle = field(default_factory=ImageStyle)


@dataclass(frozen=True)
class Prompt:
    """One question: a text and the images that go with it, which are opened when they are taken."""

    text: str
    images: Sequence[Image]


class ChatModel:
    """Answers questions from the cache, and from the server what is not there.

    Args:
        settings: what to ask with.
        server: where to ask.
        cache: where answers are kept.
        account: what may be spent.
        concurrency: questions at a time.
        offline: never ask; what is not in the cache is an error.
    """

    def __init__(
        self,
        settings: ChatSettings,
        server: Server,
        cache: AnswerCache,
        account: Account,
        concurrency: int,
        offline: bool,
    ) -> None:
        self.settings, self.server, self.account = settings, server, account
        self._cache, self._concurrency, self._offline = cache, concurrency, offline
        self.served: set[str] = set()  # what the server says that it used, with the fingerprint of its system
        self.models: set[str] = set()  # the same without the fingerprint
        self.listed: int | None = None  # tokens that an answer lists at most, if fewer than were asked for
        self._dialect = Dialect()
        self._digests: deque[tuple[Image, str]] = deque(maxlen=REMEMBERED)
        self._encoded: dict[str, dict[str, Any]] = {}

    def answers(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Answers all prompts; equal ones are asked once.

        Args:
            prompts: any number.

        Returns:
            One answer each, as `ChatClient.ask` gives it.

        Raises:
            TtmbenchError: what the server does not answer, or what does not fit under the limit of costs.
        """
        with self._cache.opened() as cache:
            requests, estimate = [], 0.0
            for prompt in progress_iter(prompts, "looking up", "questions", len(prompts)):
                images = list(prompt.images)
                requests.append(self._request(prompt.text, [self._digest(image) for image in images]))
                estimate += self._tokens_in(prompt.text, images)
            keys = [request_key(request) for request in requests]
            known = cache.get(keys)
            for answer in known.values():
                self._note_served(answer)
                self.account.stored.add(answer.get("usage"))
            first = {key: index for index, key in reversed(list(enumerate(keys)))}
            missing = [index for key, index in sorted(first.items(), key=lambda item: item[1]) if key not in known]
            if missing:
                self.account.expect(estimate / len(prompts), self.settings.parameters["max_tokens"])
                self._announce(len(first), len(missing), estimate / len(prompts))
                known.update(self._ask(cache, prompts, requests, keys, missing))
        return [known[key] for key in keys]

    def _ask(
        self,
        cache: OpenAnswerCache,
        prompts: Sequence[Prompt],
        requests: Sequence[Request],
        keys: Sequence[str],
        missing: Sequence[int],
    ) -> dict[str, Answer]:
        fresh: dict[str, Answer] = {}
        pauses = shared_pauses()

        async def main() -> None:
            pool, opening = Pool(self._concurrency), asyncio.Lock()
            async with ChatClient(self.server, pool.sleep, self._count_request, self._dialect, pauses) as client:

                async def work(job: int) -> None:
                    index = missing[job]
                    self.account.start()
                    answer = None
                    try:
                        async with opening:  # images are opened and encoded one after the other, beside the requests
                            body = await asyncio.to_thread(self._body, prompts[index], requests[index]["pictures"])
                        answer = await client.ask(body)
                        cache.put(keys[index], requests[index], answer)
                        fresh[keys[index]] = answer
                        self._note_served(answer)
                    finally:
                        if answer is None:
                            self.account.give_up()
                        else:
                            self.account.finish(answer["usage"])
                            shown.update(1)

                await pool.run(len(missing), work, lambda: self.account.has_room)

        with progress_bar(len(missing), f"asking {self.settings.model}", "questions") as shown:
            run_async(main)
        if len(fresh) < len(missing):
            raise TtmbenchError(
                f"stopped before {self.account.limit}: {len(fresh)} of {len(missing)} questions were "
                f"asked for {money(self.account.cost)}. Their answers are kept; a rerun with a higher max_cost asks "
                "the rest"
            )
        return fresh

    def _request(self, text: str, digests: list[str]) -> Request:
        """All that an answer depends on; its digest is the key in the cache."""
        return {
            "version": VERSION,
            "model": self.settings.model,
            "server": self.server.identity,
            "prompt": text,
            "pictures": digests,
            "sent_as": self.settings.images.describe(),
            **self.server.declared,
            **self.settings.parameters,
        }

    def _body(self, prompt: Prompt, digests: Sequence[str]) -> dict[str, Any]:
        parts = []
        for position, digest in enumerate(digests):
            if digest not in self._encoded:
                while len(self._encoded) >= REMEMBERED:
                    self._encoded.pop(next(iter(self._encoded)))
                self._encoded[digest] = self.settings.images.part(prompt.images[position])
            parts.append(self._encoded[digest])
        content = [*parts, {"type": "text", "text": prompt.text}]
        given = {name: value for name, value in self.settings.parameters.items() if value is not None}
        return {"model": self.settings.model, "messages": [{"role": "user", "content": content}], **given}

    def _digest(self, image: Image) -> str:
        """Digest of an image; those seen last are known again without a second look."""
        for seen, digest in self._digests:
            if seen is image:
                return digest
        digest = image_digest(image)
        self._digests.append((image, digest))
        return digest

    def _tokens_in(self, text: str, images: Sequence[Image]) -> float:
        style = self.settings.images
        return len(text) / 4 + 8 + sum(image_tokens(style.sent_size(one.size), style.detail) for one in images)

    def _announce(self, total: int, missing: int, each: float) -> None:
        if self._offline:
            raise DataError(f"{missing} of {total} answers are not stored, and --offline does not ask for them")
        out = self.settings.parameters["max_tokens"]
        cost = self.account.prices.of(missing * each, missing * out)
        warn(
            f"{self.settings.model}: {missing} of {total} questions to ask, about {missing * each:,.0f} tokens in and "
            f"at most {missing * out:,} out, estimated cost {money(cost)}"
        )

    def _note_served(self, answer: Answer) -> None:
        asked = answer.get("top_logprobs_asked")
        if asked is not None:
            self.listed = asked if self.listed is None else min(asked, self.listed)
        if answer.get("model"):
            self.models.add(str(answer["model"]))
            self.served.add(" ".join(filter(None, (str(answer["model"]), answer.get("system_fingerprint")))))

    def _count_request(self) -> None:
        self.account.requests += 1
