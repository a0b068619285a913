"""Rewritten captions, as the method ``neat`` reads them."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable
from itertools import product

from support.training_tasks import WORDS
from ttmbench.methods.contract import CAPTION_TEXTS
from ttmbench.methods.neat import COLUMNS


def sides(text: str) -> tuple[str, str, str]:
    """What a caption affirms, what it denies, and its reversal, in words that the small models know."""
    first, _, last = text.partition(" and ")
    return f"the {first}", last or f"{text} on the left", f"no {text}"


def rewrites(texts: Iterable[str]) -> str:
    """Path of a file with these captions."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False, encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *((text, *sides(text)) for text in texts)])
    return file.name


FILE = rewrites([*WORDS, *CAPTION_TEXTS, *(f"{a} and {b}" for a, b in product(WORDS, WORDS))])
