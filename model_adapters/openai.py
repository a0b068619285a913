"""Models behind an OpenAI-compatible chat-completions server: VQAScore from log-probabilities, or forced choices.

The key comes from the environment and is in no fingerprint, message or file.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ttmbench._util.images import about_frames, frames_of_videos
from ttmbench.errors import UsageError
from ttmbench.model import ChoiceModel, ChoiceQuestion, ChoiceStyle, Model, PairScorer, UndecidedPairs
from ttmbench.model_adapters._shared.decisions import Decisions
from ttmbench.model_adapters._shared.options import OPENAI, QUESTION, OpenaiOptions, takes
from ttmbench.model_adapters.api.chat import ChatModel, Prompt, money, some
from ttmbench.model_adapters.api.server import Answer, Body, Server

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_KEY = "OPENAI_API_KEY"
WHOLE_TASK = 10_000_000  # pairs or questions at a time: all go through one pool
MODEL_CHARACTERS = 100  # of the name of a model in a note
UNLISTED = -9999.0  # log-probability that servers write for a token outside their list
YES_TOKEN = "Yes"  # the one token that t2v_metrics looks for
LEAST_LEFT = 2.0**-20  # log-probabilities are float32: a sum of probabilities is not known more closely
_SPACES = " \t\r\n\u0120\u2581\u010a"  # also the marks for spaces and line ends of byte-pair and SentencePiece tokens


class _ServedModel(Model):
    """Base of both ways of asking: costs, refusals, notes."""

    pairs_at_once = WHOLE_TASK

    def __init__(self, chat: ChatModel) -> None:
        self._chat = chat
        self._spent = chat.account.cost or 0.0
        self._refused: list[tuple[str, str]] = []  # (prompt, reason), of all tasks
        self._reported = 0  # refusals that are in notes already
        self._was_asked = False  # since the last notes

    def _ask(self, prompts: Sequence[Prompt]) -> list[Answer]:
        self._was_asked, answers = True, self._chat.answers(prompts)
        for prompt, answer in zip(prompts, answers, strict=True):
            if answer["refusal"] is not None:
                self._refused.append((prompt.text, answer["refusal"]))
        return answers

    def usage(self) -> dict[str, object]:
        """Requests, tokens and money so far, models named by the server, and refusals."""
        refused = [{"prompt": prompt, "reason": reason} for prompt, reason in self._refused]
        return {**self._chat.account.report(), "served": sorted(self._chat.served), "refused": refused}

    def notes(self) -> list[str]:
        """Costs and refusals since the last call, and the models that answered if several."""
        if not self._was_asked:
            return []
        self._was_asked = False
        account, new = self._chat.account, self._refused[self._reported :]
        self._reported = len(self._refused)
        cost = None if account.cost is None else account.cost - self._spent
        self._spent = account.cost or 0.0
        notes = [f"model {self._chat.asked.model}: cost {money(cost)}; see model_info.usage"]
        if new:
            shown = some([f"{prompt!r} ({reason})" for prompt, reason in new])
            notes.append(f"{len(new)} questions were refused (all are listed in model_info.usage): {shown}")
        if len(self._chat.models) > 1:
            named = some([repr(name[:MODEL_CHARACTERS]) for name in sorted(self._chat.models)])
            count = len(self._chat.models)
            notes.append(f"the server answered as {count} models, so the scores are of no single model: {named}")
        return notes

    def _declared(self, scorer: str, **more: object) -> dict[str, object]:
        return {
            "model": self._chat.asked.model,
            "server": self._chat.server.identity,
            **self._chat.server.declared,
            "scorer": scorer,
            "captions": "sent as written",
            "pictures": self._chat.pictures(),
            **self._chat.parameters,
            **more,
        }


class VqaScoreModel(_ServedModel, PairScorer):
    """Scores a pair by how much more probable "yes" is than "no"; ``score_as`` is that of `OpenaiOptions`."""

    shows_frames = True

    def __init__(self, chat: ChatModel, score_as: str, refusals_are_wrong: bool) -> None:
        super().__init__(chat)
        self._score_as, self.refusals_are_wrong = score_as, refusals_are_wrong
        if score_as != "log_odds":
            self.not_logits = f"score_as={score_as} gives probabilities; use --model_args score_as=log_odds"
        self._bounded: Counter[str] = Counter()
        self._silent: list[str] = []
        self._decisions = Decisions()

    def take_undecided(self) -> UndecidedPairs:
        """Pairs since the last call: those whose score is a bound or missing, or with an improbable yes and no."""
        return self._decisions.take()

    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        """Scores image i with caption i: float32 [pairs]; NaN where the answer says neither yes nor no."""
        prompts = [
            Prompt(about_frames(self.frames) + QUESTION.format(caption=caption), self._shown(images, index))
            for index, caption in enumerate(captions)
        ]
        return np.array([self._score(p, a) for p, a in zip(prompts, self._ask(prompts), strict=True)], dtype=np.float32)

    def _shown(self, images: Sequence[Image], index: int) -> Sequence[Image]:
        if self.frames == 1:
            return images[index : index + 1]
        return frames_of_videos([""], lambda _: images[index], self.frames)

    def fingerprint(self) -> dict[str, object]:
        """Everything that changes a score."""
        prompt = about_frames(self.frames) + QUESTION
        missing = "least probable listed token, or what the listed ones leave, whichever is less"
        return self._declared("vqascore", prompt=prompt, score=self._score_as, side_without_token=missing)

    def notes(self) -> list[str]:
        """As for every served model; also how many scores are bounds, and which pairs have none."""
        notes = super().notes()
        if self._bounded:
            sides = " and ".join(f"'{side}' in {count}" for side, count in sorted(self._bounded.items()))
            notes.append(
                f"scores are bounds where a side is not among the listed tokens and counts as probable as the least of "
                f"them, or as what they leave if that is less: {sides} pairs"
            )
        if self._silent:
            notes.append(f"{len(self._silent)} answers list neither yes nor no: {some(list(map(repr, self._silent)))}")
        self._bounded.clear()
        self._silent.clear()
        return notes

    def _score(self, prompt: Prompt, answer: Answer) -> float:
        if answer["refusal"] is not None:
            self._decisions.add(0.0, "", undecided=True)
            return float("nan")
        listed = answer["top_logprobs"]
        sides, probability = read_yes_no(listed), yes_token(listed)
        mass, first = 0.0 if sides is None else sides.mass, max(listed, key=lambda one: one[1], default=("", 0.0))[0]
        if self._score_as == "yes_token":
            self._decisions.add(mass, first, undecided=probability is None)
            return 0.0 if probability is None else probability  # as published: a token that is not listed counts as 0
        if sides is None:
            self._decisions.add(mass, first, undecided=True)
            self._silent.append(prompt.text)
            return float("nan")
        is_bound = sides.bounded and (self._score_as == "log_odds" or sides.bounded == "yes")  # P(yes) needs no "no"
        self._decisions.add(mass, first, undecided=bool(is_bound))
        if is_bound:
            self._bounded[str(sides.bounded)] += 1
        return sides.log_odds if self._score_as == "log_odds" else sides.probability


class ChoosingModel(_ServedModel, ChoiceModel):
    """Answers forced choices in words."""

    def __init__(self, chat: ChatModel, style: ChoiceStyle) -> None:
        super().__init__(chat)
        self.choice_style = style

    def answer(self, questions: Sequence[ChoiceQuestion]) -> list[str | None]:
        """One text a question; None where the model or the server refused."""
        answers = self._ask([Prompt(question.prompt, question.images) for question in questions])
        return [None if answer["refusal"] is not None else answer["text"] for answer in answers]

    def fingerprint(self) -> dict[str, object]:
        """Everything that changes an answer; the prompts are in the results under ``choice``."""
        return self._declared("choice", order=self.choice_style.order, side_by_side=self.choice_style.side_by_side)


@takes(OpenaiOptions)
def load(asked: OpenaiOptions) -> VqaScoreModel | ChoosingModel:
    """An adapter for a model behind a server; nothing is asked yet. UsageError for a wrong argument, or without key."""
    from platformdirs import user_cache_path

    _check_address(asked.base_url)
    parameters: Body = {"temperature": asked.temperature}
    if asked.scorer == "vqascore":
        parameters |= {"max_tokens": 1, "logprobs": True, "top_logprobs": asked.top_logprobs}
    else:
        parameters |= {"max_tokens": asked.max_tokens}
    if asked.chat_template_kwargs is not None:
        parameters["chat_template_kwargs"] = asked.chat_template_kwargs
    store = user_cache_path("ttmbench", appauthor=False) / "answers.sqlite"
    store = store if asked.cache is None else Path(asked.cache).expanduser()
    chat = ChatModel(asked, Server(asked, _key(asked)), parameters, store)
    if asked.scorer == "vqascore":
        return VqaScoreModel(chat, asked.score_as, asked.on_refusal == "wrong")
    return ChoosingModel(chat, ChoiceStyle(asked.order, asked.side_by_side))


def _key(asked: OpenaiOptions) -> str | None:
    """The key from the environment. OpenAI's server needs one where it is asked, others may not."""
    name = asked.api_key_env
    key, is_named = os.environ.get(name, "").strip(), name != DEFAULT_KEY and name not in os.environ
    if not key and not asked.offline and (asked.base_url == OPENAI or is_named):
        raise UsageError(f"the environment has no {name}; set it to a key of the API, or name another with api_key_env")
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"the key in {name} holds characters that no header can hold; copy it again")
    return key or None


def _check_address(base_url: str) -> None:
    """UsageError for a wrong address."""
    own = re.split("[?#]", base_url)[0].rstrip("/").removesuffix("/chat/completions")
    if not re.match(r"https?://[^/\s]", own):
        raise UsageError(f"base_url must begin with http:// or https:// and name a server, got {base_url}")
    if base_url.rstrip("/") != own:
        raise UsageError(
            f"base_url takes neither a query nor /chat/completions: give base_url={own}, Azure's api-version by "
            "api_version=..., a key by api_key_env=NAME"
        )


@dataclass(frozen=True)
class YesNo:
    """Log-probabilities of the two answers, summed over listed tokens; of a ``bounded`` side none was listed."""

    yes: float
    no: float
    bounded: Literal["yes", "no"] | None = None

    @property
    def mass(self) -> float:
        """P(yes) + P(no), of listed tokens."""
        sides = {"yes": self.yes, "no": self.no}
        return min(1.0, sum(math.exp(min(value, 0.0)) for side, value in sides.items() if side != self.bounded))

    @property
    def log_odds(self) -> float:
        """Logarithm of P(yes) / P(no); larger is a better fit."""
        return self.yes - self.no

    @property
    def probability(self) -> float:
        """P(yes), as VQAScore is defined."""
        return math.exp(min(self.yes, 0.0))


def read_yes_no(listed: Sequence[tuple[str, float]]) -> YesNo | None:
    """Sums the listed tokens that say yes and those that say no, in any case and with any space around them.

    A repeated entry (the same token with the same log-probability) counts once. A side without a listed token gets an
    upper bound: the probability of the least probable listed token, or what the listed ones leave of 1 if that is less.

    Args:
        listed: (token, natural log-probability) of the most probable first tokens of an answer.

    Returns:
        Both sides; None if neither is listed.

    >>> round(math.exp(read_yes_no([("Yes", -0.6931472), (" yes", -1.3862944), ("No", -1.3862944)]).log_odds), 6)
    3.0
    >>> read_yes_no([("Yes", -0.01), ("The", -6.0)])
    YesNo(yes=-0.01, no=-6.0, bounded='no')
    >>> round(math.exp(read_yes_no([("Yes", math.log(0.9)), ("The", math.log(0.09))]).no), 6)
    0.01
    >>> read_yes_no([("The", -0.1)]) is None
    True
    """
    finite = [(token, value) for token, value in listed if math.isfinite(value) and value > UNLISTED]
    known = list(dict.fromkeys(finite))
    sides = {
        side: [value for token, value in known if token.strip(_SPACES).casefold() == side] for side in ("yes", "no")
    }
    if not sides["yes"] and not sides["no"]:
        return None
    left = 1.0 - math.fsum(math.exp(value) for _, value in known)
    most = min(min(value for _, value in known), math.log(max(left, LEAST_LEFT)))
    yes = _log_sum(sides["yes"]) if sides["yes"] else most
    no = _log_sum(sides["no"]) if sides["no"] else most
    return YesNo(yes, no, "yes" if not sides["yes"] else "no" if not sides["no"] else None)


def yes_token(listed: Sequence[tuple[str, float]]) -> float | None:
    """The probability of the token "Yes" as it is written; None if it is not listed."""
    return next((math.exp(min(value, 0.0)) for token, value in listed if token == YES_TOKEN and value > UNLISTED), None)


def _log_sum(values: Sequence[float]) -> float:
    """Log of the sum of exponentials."""
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values))
