"""How ColorSwap's release reads the free-text answers that it stores, so that its Table 2 comes out to the digit.

Its rules differ from those of `forced_choice.prompts`: they look for fixed phrases, compare captions letter by letter
(so a comma or a capital matters), and an option counts as chosen only if no other one is.
"""

from __future__ import annotations

import re

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
    low, own = answer.lower(), letter.lower()
    if caption.lower() in low and (other.lower() not in low or f"this image presents {caption.lower()}" in low):
        return True
    if answer == letter or re.match(rf"\(?{letter}\)|Option \(?{letter}", answer):
        return True
    if any(re.search(phrase.format(own), low) for phrase in _INTRODUCTIONS):
        return True
    if re.search(rf"option \(?{own}", low) and f"{other_letter.lower()})" not in low:
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
