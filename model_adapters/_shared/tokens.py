"""How many tokens a caption has before any is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def longer_than(tokenizer: Any, captions: Sequence[str], read: int | Sequence[int]) -> list[bool]:
    """Which captions have more tokens than a model reads of them.

    Args:
        tokenizer: of transformers.
        captions: any number, at least one.
        read: tokens that are read, those around a caption included: of all captions, or of each.

    Returns:
        One answer a caption.
    """
    # verbose: it would warn of lengths that are only counted here.
    whole = tokenizer(list(captions), padding=False, truncation=False, verbose=False)["input_ids"]
    most = [read] * len(whole) if isinstance(read, int) else read
    return [len(ids) > limit for ids, limit in zip(whole, most, strict=True)]
