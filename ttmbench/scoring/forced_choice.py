"""Asks a model forced choices: which caption fits an image, which image fits a caption (ColorSwap, section 3.2).

The prompts are those of ColorSwap (arXiv:2402.04492, Figures 4 and 5), continued to more than two options. An answer
that does not name a single option chooses nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from ttmbench._util.console import progress_bar
from ttmbench._util.images import KEPT, LazyImages, about_frames, frames_of_videos, side_by_side
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.model import ChoiceModel, ChoiceQuestion, ChoiceStyle
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.choice_arrays import Choices
from ttmbench.scoring.inputs import Inputs
from ttmbench.types import Group, GroupShape

if TYPE_CHECKING:
    from PIL.Image import Image


LETTERS = "ABCDEFGHIJ"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_NUMBERS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
# "Answer: A" names an option, "Answer: A cat" does not.
_LETTER = re.compile(
    r"\(([A-J])\)|\b([A-J])\)|\*\*([A-J])\*\*|\b(?:[Oo]ption|[Cc]aption) ([A-J])\b"
    r"|\b[Aa]nswer(?: is)?:? ([B-J]\b|A\b(?! (?!because|since|as\b)[a-z]))"
)
_LEADING = re.compile(r"\W*([A-J])[).:,*]")
_BARE = re.compile(r"\W*([A-Ja-j])\W*")
_NAMED_IMAGE = re.compile(r"\b(?i:image|video|option) ?\(?(\d+|[A-J])\b|\b(\d+)(?:st|nd|rd|th)\b|\((\d+|[A-Ja-j])\)")
_DENIED = r"(?: image| video| one)? (?:does not|doesn't|is not|isn't|cannot|can't)\b"
_FUNCTION_WORDS = frozenset({"a", "an", "the", "with", "and"})
_NONE = re.compile(r"\W*(?:neither|none|both)\b")


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


def ask_choices(
    model: ChoiceModel, inputs: Inputs, batch_size: int | BatchSizer, seed: int, frames: int = 1
) -> list[Given]:
    """Asks every question of a task, whose items are images, or videos of so many frames.

    The seed draws the order of options in a group whatever the other groups are. DataError if an image cannot be read,
    TtmbenchError if the model did not return one answer a question, UsageError if there are more captions than letters.
    """
    groups, style = inputs.groups, model.choice_style
    options = len(groups[0].captions)
    if options > len(LETTERS):
        raise UsageError(
            f"a forced choice has at most {len(LETTERS)} options, and these groups have {options} captions"
        )
    questions = list(_questions(groups, style, seed, frames))
    open_image = lru_cache(KEPT)(inputs.open)
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
    return answered


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


def text_prompt(captions: Sequence[str], frames: int = 1) -> str:
    """Asks which caption an image shows, or a video of so many frames, which are the images of the question.

    >>> text_prompt(["a red cat", "a blue cat"])
    'Does this image present (A) a red cat, or (B) a blue cat? Note, you must choose one of the two options.'
    >>> text_prompt(["a red cat", "a blue cat"], frames=8).partition(" (A)")[0]
    'The 8 images are frames of a video, in order. Does this video present'
    """
    options = [f"({letter}) {caption.strip()}" for letter, caption in zip(LETTERS, captions, strict=False)]
    listed = ", ".join(options[:-1]) + f", or {options[-1]}"
    asked = f"{about_frames(frames)}Does this {'image' if frames == 1 else 'video'} present {listed}?"
    return f"{asked} Note, you must choose one of the {_NUMBERS[len(options)]} options."


def image_prompt(caption: str, images: int, frames: int = 1) -> str:
    """Asks which of several images, or videos of so many frames, shows a caption.

    >>> image_prompt("a red cat", 2).partition("? ")[2]
    'The first image or the second image? Note you must choose one of two options.'
    >>> image_prompt("a red cat", 2, frames=8).partition(". ")[0]
    'The images are frames in order: 8 of the first video, then 8 of the second video'
    """
    item = "image" if frames == 1 else "video"
    options = [f"the {ordinal} {item}" for ordinal in ORDINALS[:images]]
    listed = ", ".join(options[:-1]) + f" or {options[-1]}"
    shown = ", then ".join(f"{frames} of {option}" for option in options)
    return (
        f"{f'The images are frames in order: {shown}. ' if frames > 1 else ''}"
        f"Which {item} better aligns with the description {caption.strip()}? {listed[0].upper()}{listed[1:]}? "
        f"Note you must choose one of {_NUMBERS[images]} options."
    )


def read_caption_choice(answer: str, captions: Sequence[str]) -> int | None:
    """Position of the caption that an answer to `text_prompt` chooses (A first); None if it names none or several.

    Letters and captions that the answer names are evidence, which must all be for one option: a letter with the other
    option's words chooses nothing.

    >>> options = ["a red cat on a blue mat", "a blue cat on a red mat"]
    >>> [read_caption_choice(text, options) for text in ("b", "(A) a red cat on a blue mat.", "Option B, because...")]
    [1, 0, 1]
    >>> read_caption_choice("The image shows the blue cat on the red mat.", options)
    1
    >>> [read_caption_choice(text, options) for text in ("Neither (A) nor (B).", "(A) a blue cat on a red mat", "")]
    [None, None, None]
    """
    if _NONE.match(answer.casefold()):
        return None
    evidence = {LETTERS.index(letter) for letter in _letters(answer.strip())}
    for dropped in (frozenset[str](), _FUNCTION_WORDS):
        words = _words(answer, dropped)
        named = [at for at, caption in enumerate(captions) if _within(_words(caption, dropped), words)]
        evidence |= set(named) if len(named) == 1 else set()
    return _only(evidence, len(captions))


def read_image_choice(answer: str, images: int, side_by_side: bool = False) -> int | None:
    """Position of the image that an answer to `image_prompt` chooses; None if it names none or several.

    Of several named images the one that is called better or best is chosen; one that is only denied does not count.
    With ``side_by_side``, where two images were joined, "left" and "right" name them too.

    >>> [read_image_choice(text, 2) for text in ("The second image.", "first", "Image 2", "(A)", "2")]
    [1, 0, 1, 0, 1]
    >>> read_image_choice("The first image better aligns with it. The second image shows a blue cat.", 2)
    0
    >>> [read_image_choice(text, 2) for text in ("Neither image fits.", "The first or the second.", "I cannot tell.")]
    [None, None, None]
    """
    text = answer.casefold().strip()
    names = [*ORDINALS[:images], *(("left", "right") if side_by_side and images == 2 else ())]
    position = {name: at % images for at, name in enumerate(names)}
    word = "|".join(names)
    mentioned = {position[name] for name in re.findall(rf"\b({word})\b(?!{_DENIED})", text)}
    if len(mentioned) > 1:
        clause = rf"\b({word})\b(?:(?!\b(?:{word}|not)\b|[.;]).)*?\b(?:better|best)\b"
        mentioned = {position[name] for name in re.findall(clause, text)}
        return _only(mentioned, images)
    if not mentioned and not _NONE.match(text):
        bare = re.fullmatch(r"\W*(\d+|[a-j])\W*", text)
        labels = [bare.group(1)] if bare else ["".join(parts) for parts in _NAMED_IMAGE.findall(answer)]
        mentioned = {int(name) - 1 if name.isdigit() else LETTERS.index(name.upper()) for name in labels}
    return _only(mentioned, images)


def _letters(answer: str) -> set[str]:
    """Letters that name an option; one that the answer begins with counts alone."""
    leading = _BARE.fullmatch(answer) or _LEADING.match(answer)
    if leading:
        return {leading.group(1).upper()}
    return {"".join(parts) for parts in _LETTER.findall(answer)}


def _words(text: str, dropped: frozenset[str]) -> list[str]:
    """Words in order; commas and the like count, quotation marks and full stops do not."""
    return [word for word in re.findall(r"[^\W_]+|[,;:]", text.casefold()) if word not in dropped]


def _within(part: Sequence[str], whole: Sequence[str]) -> bool:
    return bool(part) and any(whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1))


def _only(chosen: set[int], options: int) -> int | None:
    if len(chosen) != 1:
        return None
    choice = next(iter(chosen))
    return choice if 0 <= choice < options else None
