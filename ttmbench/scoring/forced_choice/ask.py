"""Asks a model forced choices: which caption fits an image, which image fits a caption (ColorSwap, section 3.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from ttmbench._util.console import progress_bar
from ttmbench._util.images import KEPT, LazyImages, frames_of_videos, side_by_side
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.model import ChoiceModel, ChoiceQuestion, ChoiceStyle
from ttmbench.results.summary import Clusters, clusters_of
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.forced_choice.arrays import Choices
from ttmbench.scoring.forced_choice.prompts import (
    LETTERS,
    ORDINALS,
    image_prompt,
    read_caption_choice,
    read_image_choice,
    text_prompt,
)
from ttmbench.scoring.inputs import Fingerprint
from ttmbench.types import Group, GroupShape

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Asked:
    """One question about a group."""

    group: int  # its position
    side: Literal["text", "image"]  # ``text``: which caption fits an image; ``image``: which image fits a caption
    subject: int  # which image (text) or caption (image) the question is about; the correct option has the same number
    order: tuple[int, ...]  # the options as they were shown
    prompt: str  # the text


@dataclass(frozen=True)
class Given:
    """An answer: as the model wrote it (None if it refused), and the option that it chooses (None if none)."""

    asked: Asked
    answer: str | None
    chosen: int | None

    @property
    def right(self) -> bool:
        """Whether it chooses the true option."""
        return self.chosen == self.asked.subject


@dataclass(frozen=True)
class AnsweredQuestions:
    """All answers of a task, which of them are correct, the fingerprint of the data, and the clusters of its groups."""

    given: list[Given]
    choices: Choices
    fingerprint: str
    clusters: Clusters


def ask_choices(
    model: ChoiceModel, groups: Sequence[Group], batch_size: int | BatchSizer, seed: int, frames: int = 1
) -> AnsweredQuestions:
    """Asks every question of a task, whose items are images, or videos of so many frames.

    The seed draws the order of options in a group whatever the other groups are. DataError if an image cannot be read,
    TtmbenchError if the model did not return one answer a question, UsageError if there are more captions than letters.
    """
    options = len(groups[0].captions)
    if options > len(LETTERS):
        raise UsageError(
            f"a forced choice has at most {len(LETTERS)} options, and these groups have {options} captions"
        )
    style, fingerprint = model.choice_style, Fingerprint(groups)
    questions = list(_questions(groups, style, seed, frames))
    open_image = lru_cache(KEPT)(fingerprint.opener())
    batch_sizer = BatchSizer.of(model.pairs_at_once or batch_size)
    answered: list[Given] = []

    def ask(rows: slice) -> list[Given]:
        part = questions[rows]
        answers = list(model.answer([_handed(question, groups, style, open_image, frames) for question in part]))
        if len(answers) != len(part):
            raise TtmbenchError(f"the model returned {len(answers)} answers to {len(part)} questions")
        return [
            Given(question, text, read_answer(text, question, groups[question.group], style))
            for question, text in zip(part, answers, strict=True)
        ]

    with progress_bar(len(questions), "asking", "questions") as shown:
        for part in batch_sizer.map_batches(0, len(questions), ask):
            answered += part
            shown.update(len(part))
    fingerprint.add_remaining()
    right = choices_of(answered, len(groups), GroupShape(len(groups[0].images), options))
    return AnsweredQuestions(answered, right, fingerprint.hexdigest(), clusters_of(groups, fingerprint.content_of))


def _questions(groups: Sequence[Group], style: ChoiceStyle, seed: int, frames: int) -> Iterator[Asked]:
    for position, group in enumerate(groups):
        images = len(group.images)
        captions = len(group.captions)
        for subject in range(images if images <= captions else 0):  # else some images have no caption of their own
            for order in _orders(len(group.captions), style, f"{seed} {group.group_id} text {subject}"):
                prompt = text_prompt([group.captions[option] for option in order], frames)
                yield Asked(position, "text", subject, order, prompt)
        for subject in range(min(images, captions) if images > 1 else 0):
            for order in _orders(images, style, f"{seed} {group.group_id} image {subject}"):
                prompt = image_prompt(group.captions[subject], images, frames)
                yield Asked(position, "image", subject, order, prompt)


def _orders(options: int, style: ChoiceStyle, key: str) -> list[tuple[int, ...]]:
    """One order drawn by the key, or that and its reverse."""
    digest = hashlib.sha256(key.encode()).digest()
    drawn = np.random.default_rng(int.from_bytes(digest[:8], "big")).permutation(options)
    order = tuple(int(option) for option in drawn)
    return [order] if style.order == "random" else [order, order[::-1]]


def _handed(
    asked: Asked, groups: Sequence[Group], style: ChoiceStyle, open_image: Callable[[str], Image], frames: int
) -> ChoiceQuestion:
    """The question with its images, which are opened when the model takes them; of videos these are their frames."""
    group = groups[asked.group]
    shown = [asked.subject] if asked.side == "text" else asked.order
    names = [group.images[index].name for index in shown]
    options = tuple(LETTERS if asked.side == "text" else ORDINALS)[: len(asked.order)]
    if frames > 1:
        return ChoiceQuestion(asked.prompt, frames_of_videos(names, open_image, frames), options)
    if asked.side == "text" or not style.side_by_side:
        return ChoiceQuestion(asked.prompt, LazyImages(names, open_image), options)

    def joined(_: str) -> Image:
        return side_by_side([open_image(name) for name in names])

    return ChoiceQuestion(asked.prompt, LazyImages([" | ".join(names)], joined), options)


def read_answer(answer: str | None, asked: Asked, group: Group, style: ChoiceStyle) -> int | None:
    """The option that an answer chooses, by its number in the group."""
    if answer is None:
        return None
    if asked.side == "text":
        position = read_caption_choice(answer, [group.captions[option] for option in asked.order])
    else:
        position = read_image_choice(answer, len(asked.order), style.side_by_side)
    return None if position is None else asked.order[position]


def choices_of(answers: Sequence[Given], groups: int, shape: GroupShape) -> Choices:
    """Which questions were answered correctly: one asked in several orders only if every answer is."""
    shape_of_side = (groups, min(shape.images, shape.captions))
    text, image = np.ones(shape_of_side, dtype=bool), np.ones(shape_of_side, dtype=bool)
    for answer in answers:
        side = text if answer.asked.side == "text" else image
        side[answer.asked.group, answer.asked.subject] &= answer.right
    return Choices(None if shape.more_images else text, image if shape.images > 1 else None)
