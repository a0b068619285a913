"""Where the cache lies."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ttmbench.errors import UsageError

CACHE_VARIABLE = "TTMBENCH_CACHE"
LIMIT_VARIABLE = "TTMBENCH_PREPARED_LIMIT"
DEFAULT_LIMIT = "10GB"  # of prepared images
OFF = "off"
SCORES, PIXELS, PREPARED = "scores", "pixels", "prepared"


def cache_folder(given: str | Path | None) -> Path | None:
    """The cache's folder: as given, else the environment variable TTMBENCH_CACHE, else one in the user's cache folder.

    Args:
        given: a folder, or ``off``; None if the user said nothing.

    Returns:
        The folder, which may not exist; None if nothing is to be kept.

    >>> cache_folder("off") is None
    True
    """
    detail = given if given is not None else os.environ.get(CACHE_VARIABLE)
    if detail is not None and str(detail):
        return None if str(detail).lower() == OFF else Path(detail).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("ttmbench", appauthor=False) / "store"


def prepared_limit() -> int:
    """Bytes that prepared images may take, by TTMBENCH_PREPARED_LIMIT; 0 keeps none."""
    return parse_size(os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT, LIMIT_VARIABLE)


def parse_size(text: str, what: str) -> int:
    """Bytes of a size such as ``500MB`` or ``2.5GB``; UsageError naming ``what`` for anything else.

    >>> parse_size("1.5 kB", "size")
    1500
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", text.strip(), flags=re.IGNORECASE)
    if found is None:
        raise UsageError(f"{what}: {text!r} is no size; write it like 500MB or 2.5GB")
    return int(float(found[1]) * 1000 ** " KMGT".index(found[2].upper() or " "))
