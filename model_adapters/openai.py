"""Models behind an OpenAI-compatible chat-completions server: VQAScore from log-probabilities, or forced choices.

The key comes from the environment and is in no fingerprint, message or file.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import httpx2
import numpy as np

from ttmbench._util.redact import is_variable_name, url_without_secrets
from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.yes_no import QUESTION, YesNo, read_yes_no, yes_token
from ttmbench.model_adapters.api.cache import AnswerCache
from ttmbench.model_adapters.api.client import Server
from ttmbench.model_adapters.api.costs import Account, Prices, money
from ttmbench.model_adapters.api.images import FORMATS, ImageStyle
from ttmbench.model_adapters.api.model import ChatModel, ChatSettings, Prompt
from ttmbench.protocols import ChoiceQuestion, ChoiceStyle

if TYPE_CHECKING:
    from PIL.Image import Image

OPENAI = "https://api.openai.com/v1"
DEFAULT_KEY = "OPENAI_API_KEY"
WHOLE_TASK = 10_000_000  # pairs or questions at a time: all go through one pool
CHOICE_TOKENS = 100  # of an answer in words
SHOWN = 5  # prompts, or models, in a note
MODEL_CHARACTERS = 100  # of the name of a model in a note


class _ServedModel:
    """What both ways of asking have in common."""

    pairs_at_once = WHOLE_TASK

    def __init__(self, chat: ChatModel) -> None:
        self._chat = chat
        self._spent = chat.account.cost or 0.0
        self._refused: list[tuple[str, str]] = []  # (prompt, reason), of all tasks
        self._reported = 0  # refusals that notes have told of

    def _ask(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        answers = self._chat.answers(prompts)
        for prompt, answer in zip(prompts, answers, strict=True):
            if answer["refusal"] is not None:
                self._refused.append((prompt.text, answer["refusal"]))
        return answers

    def divide_costs(self, shares: int) -> None:
        """From now on so many processes ask a share of the questions each, and this one may spend its part."""
        self._chat.account.shares = shares

    def usage(self) -> dict[str, Any]:
        """Requests, tokens and money so far, what the server says that it served, and what was refused."""
        refused = [{"prompt": prompt, "reason": reason} for prompt, reason in self._refused]
        listed = {} if self._chat.listed is None else {"top_logprobs_allowed": self._chat.listed}
        return {**self._chat.account.report(), "served": sorted(self._chat.served), **listed, "refused": refused}

    def take_notes(self) -> list[str]:
        """What the answers since the last call cost, which were refused, and which models answered if several."""
        account, new = self._chat.account, self._refused[self._reported :]
        self._reported = len(self._refused)
        cost = None if account.cost is None else account.cost - self._spent
        self._spent = account.cost or 0.0
        notes = [f"model {self._chat.settings.model}: cost {money(cost)}; see model_info.usage"]
        if new:
            shown = "; ".join(f"{prompt!r} ({reason})" for prompt, reason in new[:SHOWN])
            rest = f"; {len(new) - SHOWN} more are listed in model_info.usage" if len(new) > SHOWN else ""
            notes.append(f"{len(new)} questions were refused: {shown}{rest}")
        if self._chat.listed is not None:
            asked = self._chat.settings.parameters["top_logprobs"]
            notes.append(f"the server lists at most {self._chat.listed} tokens, of {asked} that were asked for")
        if len(self._chat.models) > 1:
            named = ", ".join(repr(one[:MODEL_CHARACTERS]) for one in sorted(self._chat.models)[:SHOWN])
            more = f" and {len(self._chat.models) - SHOWN} more" if len(self._chat.models) > SHOWN else ""
            notes.append(
                f"the server answered as {len(self._chat.models)} models: {named}{more}; these scores are of no single "
                "model"
            )
        return notes

    def _declared(self, scorer: str, **more: Any) -> dict[str, Any]:
        settings = self._chat.settings
        return {
            "model": settings.model,
            "server": self._chat.server.identity,
            **self._chat.server.declared,
            "scorer": scorer,
            "pictures": settings.images.describe(),
            **settings.parameters,
            **more,
        }


class VqaScoreModel(_ServedModel):
    """Scores a pair by how much more probable "yes" is than "no"; a `PairScorer`.

    Args:
        chat: the model.
        score_as: ``log_odds``; ``probability`` of yes; ``yes_token``, of the token "Yes" alone.
        refusals_are_wrong: what a pair without a score means; see `ttmbench.protocols.MayRefuse`.
    """

    def __init__(self, chat: ChatModel, score_as: str, refusals_are_wrong: bool) -> None:
        super().__init__(chat)
        self._score_as, self.refusals_are_wrong = score_as, refusals_are_wrong
        self._bounded: Counter[str] = Counter()
        self._silent: list[str] = []
        self._undecided, self._scored = 0, 0  # pairs since they were last asked for

    def take_undecided(self) -> tuple[int, int]:
        """Pairs since the last call whose score is a bound or missing, and all pairs."""
        taken = self._undecided, self._scored
        self._undecided, self._scored = 0, 0
        return taken

    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        """Scores image i with caption i: float32 [pairs]; NaN where the answer says neither yes nor no."""
        prompts = [
            Prompt(QUESTION.format(caption=caption), images[index : index + 1])
            for index, caption in enumerate(captions)
        ]
        return np.array([self._score(p, a) for p, a in zip(prompts, self._ask(prompts), strict=True)], dtype=np.float32)

    def fingerprint(self) -> dict[str, Any]:
        """What changes a score."""
        missing = "least probable listed token, or what the listed ones leave, whichever is less"
        return self._declared("vqascore", prompt=QUESTION, score=self._score_as, side_without_token=missing)

    def take_notes(self) -> list[str]:
        """As for every served model; also how many scores are bounds, and which pairs have none."""
        notes = super().take_notes()
        if self._bounded:
            sides = " and ".join(f"'{side}' in {count}" for side, count in sorted(self._bounded.items()))
            notes.append(
                f"scores are bounds where a side is not among the listed tokens and counts as probable as the least of "
                f"them, or as what they leave if that is less: {sides} pairs"
            )
        if self._silent:
            shown = "; ".join(map(repr, self._silent[:SHOWN]))
            notes.append(f"{len(self._silent)} answers list neither yes nor no: {shown}")
        self._bounded.clear()
        self._silent.clear()
        return notes

    def _score(self, prompt: Prompt, answer: dict[str, Any]) -> float:
        self._scored += 1
        if answer["refusal"] is not None:
            self._undecided += 1
            return float("nan")
        listed = [(token, value) for token, value in answer["top_logprobs"]]
        if self._score_as == "yes_token":
            found = yes_token(listed)
            self._undecided += found is None
            return 0.0 if found is None else found  # as published: what is not listed counts as nothing
        sides: YesNo | None = read_yes_no(listed)
        if sides is None:
            self._undecided += 1
            self._silent.append(prompt.text)
            return float("nan")
        if sides.bounded and (self._score_as == "log_odds" or sides.bounded == "yes"):  # P(yes) needs no "no"
            self._undecided += 1
            self._bounded[sides.bounded] += 1
        return sides.log_odds if self._score_as == "log_odds" else sides.probability


class ChoosingModel(_ServedModel):
    """Answers forced choices in words; a `ChoiceScorer`."""

    def __init__(self, chat: ChatModel, style: ChoiceStyle) -> None:
        super().__init__(chat)
        self.choice_style = style

    def answer(self, questions: Sequence[ChoiceQuestion]) -> list[str | None]:
        """One text a question; None where the model or the server refused."""
        answers = self._ask([Prompt(question.prompt, question.images) for question in questions])
        return [None if answer["refusal"] is not None else answer["text"] for answer in answers]

    def fingerprint(self) -> dict[str, Any]:
        """What changes an answer; the prompts are in the results under ``choice``."""
        return self._declared("choice", order=self.choice_style.order, side_by_side=self.choice_style.side_by_side)


def load(
    *,
    model: str,
    base_url: str = OPENAI,
    scorer: str = "vqascore",
    api_key_env: str = DEFAULT_KEY,
    api_version: str | None = None,
    concurrency: int = 16,
    timeout: float = 60.0,
    retries: int = 8,
    backoff: float = 0.5,
    cache: str | None = None,
    max_cost: float | None = None,
    price_in: float | None = None,
    price_out: float | None = None,
    image_size: int | None = 512,
    image_format: str = "jpeg",
    detail: str | None = "high",
    temperature: float | None = 0.0,
    top_logprobs: int = 20,
    score_as: str = "log_odds",
    on_refusal: str | None = None,
    order: str = "random",
    side_by_side: bool = False,
    max_tokens: int = CHOICE_TOKENS,
    offline: bool = False,
) -> VqaScoreModel | ChoosingModel:
    """Makes an adapter for a model behind a server; nothing is asked yet.

    Args:
        model: as the server calls it.
        base_url: of the API, without ``/chat/completions``.
        scorer: ``vqascore`` (a score per pair, from log-probabilities) or ``choice`` (forced choices in words).
        api_key_env: environment variable that holds the key.
        api_version: of Azure, such as ``2024-10-21``: goes into the address, and the key into the header ``api-key``.
        concurrency: questions at a time.
        timeout: seconds until an answer must be there.
        retries: tries after the first.
        backoff: seconds before the second try; doubles with each, up to a minute.
        cache: file of stored answers; by default one in the user's cache folder.
        max_cost: what a run may spend; needs both prices.
        price_in: of a million tokens sent.
        price_out: of a million tokens received.
        image_size: longest side in pixels; larger images are made smaller. None sends them as they are.
        image_format: ``jpeg`` or ``png``.
        detail: what the server is told of how closely to look at images; None says nothing.
        temperature: of the request; None leaves it out.
        top_logprobs: tokens listed with VQAScore; fewer where the server refuses as many.
        score_as: ``log_odds`` of yes, its ``probability``, or that of the token "Yes" alone (``yes_token``).
        on_refusal: with VQAScore, ``error`` (the default) or ``wrong`` for groups with a pair that has no score.
        order: of options in forced choices: ``random`` by seed, or ``both``.
        side_by_side: join the two images of a forced choice, for models that take one.
        max_tokens: of an answer in words.
        offline: use stored answers only.

    Returns:
        The adapter.

    Raises:
        UsageError: a wrong argument, or the environment has no key.
    """
    _check_one_of("scorer", scorer, ("vqascore", "choice"))
    _check_one_of("score_as", score_as, ("log_odds", "probability", "yes_token"))
    _check_one_of("on_refusal", on_refusal or "error", ("error", "wrong"))
    _check_one_of("order", order, ("random", "both"))
    _check_one_of("image_format", image_format, FORMATS)
    counts = {"concurrency": concurrency, "max_tokens": max_tokens, "top_logprobs": top_logprobs}
    counts |= {} if image_size is None else {"image_size": image_size}
    for name, count in counts.items():
        _check_number(name, count, above=0, whole=True)
    _check_number("timeout", timeout, above=0)
    _check_number("retries", retries, whole=True)
    limits = {
        "backoff": backoff,
        "max_cost": max_cost,
        "price_in": price_in,
        "price_out": price_out,
    }
    for name, limit in limits.items():
        _check_number(name, 0 if limit is None else limit)
    if max_cost is not None and (price_in is None or price_out is None):
        raise UsageError("max_cost needs price_in and price_out: what a million tokens cost")
    if scorer == "choice" and on_refusal is not None:
        raise UsageError("on_refusal is for scorer=vqascore; in forced choices a refusal chooses nothing and is wrong")
    _check_address(base_url)
    key = _key(str(api_key_env), base_url, offline)
    images = ImageStyle(image_size, image_format, detail)
    parameters: dict[str, Any] = {"temperature": temperature}
    if scorer == "vqascore":
        parameters |= {"max_tokens": 1, "logprobs": True, "top_logprobs": top_logprobs}
    else:
        parameters |= {"max_tokens": max_tokens}
    chat = ChatModel(
        ChatSettings(str(model), parameters, images),
        Server(base_url, key, timeout, retries, backoff, None if api_version is None else str(api_version)),
        AnswerCache(_cache_file(cache)),
        Account(Prices(price_in, price_out), max_cost),
        concurrency,
        offline,
    )
    if scorer == "vqascore":
        return VqaScoreModel(chat, score_as, on_refusal == "wrong")
    return ChoosingModel(chat, ChoiceStyle(cast(Literal["random", "both"], order), side_by_side))


def _key(name: str, base_url: str, offline: bool) -> str | None:
    """The key from the environment. A server of one's own may need none; OpenAI's does."""
    if not is_variable_name(name):
        raise UsageError(
            "api_key_env takes the name of an environment variable that holds the key, such as OPENAI_API_KEY, and not "
            "the key itself; what was given is no name of a variable that is set, and is not shown"
        )
    key = os.environ.get(name, "").strip()
    if not key and (base_url == OPENAI or (name != DEFAULT_KEY and name not in os.environ)) and not offline:
        raise UsageError(f"the environment has no {name}; set it to a key of the API, or name another with api_key_env")
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"the key in {name} holds characters that no header can hold; copy it again")
    return key or None


def _check_address(base_url: str) -> None:
    """UsageError for what is no address of an API; it shows nothing that may be a key."""
    if not base_url.startswith(("http://", "https://")):
        raise UsageError(f"base_url must begin with http:// or https://, got {url_without_secrets(base_url)}")
    address, question, _ = base_url.partition("?")
    if question or "#" in address:
        raise UsageError(
            f"base_url takes no query (?...): give {url_without_secrets(address.partition('#')[0])}, and Azure's "
            "api-version by api_version=..., a key by api_key_env=NAME"
        )
    if address.rstrip("/").endswith("/chat/completions"):
        shown = url_without_secrets(address.rstrip("/").removesuffix("/chat/completions"))
        raise UsageError(f"base_url is given without /chat/completions: base_url={shown}")
    try:
        host = httpx2.URL(address).host
    except (httpx2.InvalidURL, ValueError):
        host = ""
    if not host:
        raise UsageError(f"base_url names no server: {url_without_secrets(address)}")


def _cache_file(cache: str | None) -> Path:
    if cache is not None:
        return Path(cache).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("ttmbench", appauthor=False) / "answers.sqlite"


def _check_one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} must be {' or '.join(allowed)}, got {value}")


def _check_number(name: str, value: Any, above: float | None = None, whole: bool = False) -> None:
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf or (above is not None and value <= above):
        least = "above 0" if above is not None else "at least 0"
        raise UsageError(f"{name} must be a {'whole ' if whole else ''}number {least}, got {value}")
