"""Files of stored answers to forced choices: ColorSwap's release (two files) and SugarCrepe's GPT-4V answers.

Both are JSON documents. ColorSwap has a list with one entry per group, in one file the questions for each image and in
another those for each caption; SugarCrepe has a mapping of items with the answer that was chosen.

ColorSwap's free-text answers are read as its release reads them, so that its Table 2 comes out to the digit. Unlike
`forced_choice.prompts`, these rules look for fixed phrases, compare captions letter by letter, and count an option as
chosen only if no other one is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import DataError, UsageError
from ttmbench.scoring.forced_choice.arrays import Choices
from ttmbench.types import GroupShape

Entry = dict[str, Any]  # of a JSON document
COLORSWAP, SUGARCREPE = "colorswap answers", "sugarcrepe answers"
_FUNCTION_WORDS = (" a ", " an ", " the ", " with ", " and ")
_ARTICLES = ("a ", "an ", "the ")
# Where a letter follows one of these, the answer is read as that option, whatever else it says.
_INTRODUCTIONS = (
    r"image presents \({0}\)",
    r"image presents option \({0}\)",
    r"image presents option {0}",
    r"it would imply \({0}\)",
    r"it could metaphorically represent \({0}\)",
    r"it is \({0}\)",
)


@dataclass(frozen=True)
class ReleasedAnswers:
    """Content of files of answers."""

    choices: Choices  # which questions were answered correctly
    group_ids: list[str]  # in the order of the choices
    format: str  # of the files
    unread: list[tuple[str, str, str]] = field(default_factory=list)  # as of `unread_notes`
    notes: list[str] = field(default_factory=list)  # for the reader


def is_answers(path: Path) -> bool:
    """Whether a file is a whole JSON document of stored answers, rather than of scores; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
        return head[:1] in (b"[", b"{") and _format_of(read_json(path)) is not None
    except (OSError, ValueError):
        return False


def read_answers(paths: Sequence[Path], shape: GroupShape) -> ReleasedAnswers:
    """Reads stored answers from one file, or from ColorSwap's two in any order; ``shape`` is that of the task's groups.

    Raises:
        DataError: a file is in neither format, an entry is incomplete, or the files are not of the same groups.
        UsageError: more files than the format has.
    """
    contents = []
    for path in paths:
        try:
            contents.append((path, read_json(path)))
        except Unreadable as error:
            raise DataError(f"{path}: {error}") from None
        if _format_of(contents[-1][1]) is None:
            raise DataError(f"{path}: holds no answers of ColorSwap's release or of SugarCrepe's GPT-4V files")
    formats = {_format_of(content) for _, content in contents}
    if len(formats) > 1 or len(paths) > (1 if SUGARCREPE in formats else 2):
        raise UsageError("several files are read together only if they are ColorSwap's text and image answers")
    wanted = GroupShape(1, 2) if SUGARCREPE in formats else GroupShape(2, 2)
    if shape != wanted:
        raise DataError(f"{paths[0]}: {formats.pop()} are of {wanted} groups, the task has {shape} groups")
    return _sugarcrepe(*contents[0]) if SUGARCREPE in formats else _colorswap(contents)


def _format_of(content: object) -> str | None:
    if isinstance(content, list) and content and isinstance(content[0], dict):
        return COLORSWAP if {"log_1", "log_2", "id"} <= set(content[0]) else None
    if isinstance(content, dict):
        first = next((value for value in content.values() if isinstance(value, dict)), {})
        return SUGARCREPE if {"answer", "caption", "negative_caption"} <= set(first) else None
    return None


def _colorswap(contents: Sequence[tuple[Path, list[Entry]]]) -> ReleasedAnswers:
    sides: dict[str, dict[str, list[bool]]] = {}
    unread: list[tuple[str, str, str]] = []
    for path, entries in contents:
        side = "text" if "response_image_1" in entries[0] else "image"
        if side in sides:
            raise UsageError(f"both files hold answers to the {side} questions; one should hold the other side's")
        rows = sides.setdefault(side, {})
        for entry in entries:
            group = str(entry.get("id") if isinstance(entry, dict) else None)
            if group in rows:
                raise DataError(f"{path}: duplicate group id {group}")
            rows[group] = [_colorswap_right(path, group, entry, side, number, unread) for number in (1, 2)]
    order = list(next(iter(sides.values())))
    for rows in sides.values():
        if absent := set(order) ^ set(rows):
            raise DataError(f"group {min(absent)} is not in both files")
    choices = {side: np.array([rows[group] for group in order]) for side, rows in sides.items()}
    return ReleasedAnswers(Choices(choices.get("text"), choices.get("image")), order, COLORSWAP, unread)


def _colorswap_right(
    path: Path, group: str, entry: Entry, side: str, number: int, unread: list[tuple[str, str, str]]
) -> bool:
    """Whether one answer is correct. The options were shuffled, so the correct one is what the log says."""
    subject = "image" if side == "text" else "caption"
    try:
        answer, log = entry.get(f"response_{subject}_{number}"), entry[f"log_{number}"]
        correct = (["A", "B"] if side == "text" else ["first", "second"]).index(log["correct_answer"])
        captions = (str(log["caption_1"]), str(log["caption_2"])) if side == "text" else ("", "")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(
            f"{path}: group {group} has no usable log_{number} (correct_answer, and the captions as they were shown)"
        ) from None
    if answer is None and "error" not in entry:
        raise DataError(f"{path}: group {group} has no answer response_{subject}_{number}")
    detail = str(answer or "")
    choice = read_colorswap_text(detail, captions) if side == "text" else read_colorswap_image(detail)
    if choice is None:
        unread.append((group, f"{subject} {number}", detail))
    return choice == correct


def _sugarcrepe(path: Path, content: Entry) -> ReleasedAnswers:
    """Items whose chosen caption is stored; where it is empty, the release found no choice in the answer."""
    right: dict[str, bool] = {}
    unread: list[tuple[str, str, str]] = []
    notes, differing = [], []
    for key, item in content.items():
        if not isinstance(item, dict):
            notes.append(f"the key '{key}' of {path.name} is not an item and was skipped")
            continue
        answer = item.get("answer")
        if not {"caption", "negative_caption"} <= set(item) or not isinstance(answer, dict):
            raise DataError(f"{path}: item {key} has no answer, caption and negative_caption")
        if "multiple_choice_answer" not in answer:
            raise DataError(f"{path}: the answer of item {key} has no multiple_choice_answer")
        chosen, detail = str(answer["multiple_choice_answer"]).strip(), str(answer.get("free_form_answer", ""))
        caption, negative = str(item["caption"]).strip(), str(item["negative_caption"]).strip()
        if chosen not in (caption, negative):
            unread.append((key, "image 1", detail or chosen))
        right[key] = chosen == caption
        if "correct" in item and bool(item["correct"]) != right[key]:
            differing.append(key)
    if differing:
        notes.append(
            f"{len(differing)} items of {path.name} say otherwise of themselves ('correct') than their answers do: "
            f"{', '.join(differing)}"
        )
    return ReleasedAnswers(
        Choices(np.array(list(right.values()))[:, None], None), list(right), SUGARCREPE, unread, notes
    )


def read_colorswap_text(answer: str, captions: tuple[str, str]) -> int | None:
    """Which of the two captions, (A) or (B), an answer chooses; None for neither or both.

    >>> read_colorswap_text("(B) a blue cat", ("a red cat", "a blue cat"))
    1
    >>> read_colorswap_text("The image presents a red cat.", ("a red cat", "a blue cat"))
    0
    >>> read_colorswap_text("I cannot tell.", ("a red cat", "a blue cat")) is None
    True
    """
    return _single(
        _names_caption(answer, captions[0], captions[1], "A", "B"),
        _names_caption(answer, captions[1], captions[0], "B", "A"),
    )


def read_colorswap_image(answer: str) -> int | None:
    """Which of the two images, first or second, an answer chooses; None for neither or both.

    >>> read_colorswap_image("The second image better aligns with it. The first image is blue.")
    1
    >>> read_colorswap_image("The first image or the second image.") is None
    True
    """
    return _single(_names_image(answer, "first", "second"), _names_image(answer, "second", "first"))


def _names_caption(answer: str, caption: str, other: str, letter: str, other_letter: str) -> bool:
    low, lower_letter = answer.lower(), letter.lower()
    if caption.lower() in low and (other.lower() not in low or f"this image presents {caption.lower()}" in low):
        return True
    if answer == letter or re.match(rf"\(?{letter}\)|Option \(?{letter}", answer):
        return True
    if any(re.search(phrase.format(lower_letter), low) for phrase in _INTRODUCTIONS):
        return True
    if re.search(rf"option \(?{lower_letter}", low) and f"{other_letter.lower()})" not in low:
        # "option (a)" as well as "option a", which also begins words such as "option another": as released.
        return True
    bare = _without_function_words(answer)
    return _without_function_words(caption) in bare and _without_function_words(other) not in bare


def _names_image(answer: str, ordinal: str, other: str) -> bool:
    low = answer.lower()
    if ordinal in low and other not in low:
        return True
    return bool(
        re.search(rf"{ordinal} image (?:better aligns|aligns better)|the {ordinal} image is more relevant", low)
    )


def _without_function_words(text: str) -> str:
    for word in _FUNCTION_WORDS:
        text = text.replace(word, " ")
    for article in _ARTICLES:
        text = text.removeprefix(article)
    return text.lower()


def _single(first: bool, second: bool) -> int | None:
    return None if first == second else int(second)
