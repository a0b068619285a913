"""Values as users of torch and of lm-evaluation-harness spell them, read as ours."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

DTYPES = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}


def read_dtype(value: Any) -> Any:
    """A dtype by our name; what is none is left as it is.

    >>> read_dtype("bfloat16"), read_dtype("torch.float32"), read_dtype("fp16"), read_dtype("int8")
    ('bf16', 'fp32', 'fp16', 'int8')
    """
    name = str(value).removeprefix("torch.")
    return DTYPES.get(name, value)


def nested(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Settings with ``name.key`` gathered under ``name``, for some names.

    >>> nested({"max_memory.0": "20GiB", "max_memory.cpu": "60GiB", "a.b": 1}, ["max_memory"])
    {'max_memory': {'0': '20GiB', 'cpu': '60GiB'}, 'a.b': 1}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name, dot, rest = key.partition(".")
        if dot and name in names:
            inner = found.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{name} is given whole and as {key}")
            inner[rest] = value
        elif isinstance(found.get(key), dict):
            raise ValueError(f"{key} is given whole and as {key}.{next(iter(found[key]))}")
        else:
            found[key] = value
    return found


def read_batch_size(value: Any) -> Any:
    """A batch size; ``auto:4`` is ``auto``, since the size is found anew wherever memory runs out.

    >>> read_batch_size("auto:4"), read_batch_size(8)
    ('auto', 8)
    """
    return "auto" if isinstance(value, str) and re.fullmatch(r"auto:\d+", value) else value


def read_limit(value: Any) -> Any:
    """A limit as a count or a share below 1.

    >>> read_limit("8"), read_limit(0.1), read_limit(8.0)
    (8, 0.1, 8)

    Raises:
        ValueError: it is neither.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not (0 < number < 1 or (number >= 1 and number.is_integer())):
        raise ValueError(f"must be a whole number of groups from 1, or a share of them between 0 and 1, got {value}")
    return int(number) if number >= 1 else number


def groups_of(limit: float | None, total: int | None) -> int | None:
    """How many groups a limit leaves; a share is rounded up.

    Args:
        limit: a count, a share below 1, or None for all.
        total: how many there are; None if that is not known before they are read.

    Returns:
        The number; None for all, and for a share of what is not known.

    >>> groups_of(0.1, 205), groups_of(8, 205), groups_of(None, 205), groups_of(0.1, None)
    (21, 8, None, None)
    """
    if limit is None or limit >= 1:
        return None if limit is None else int(limit)
    return None if total is None else math.ceil(limit * total)


def read_rerank(pairs: Any) -> Any:
    """What ranks candidates before a model that scores pairs does.

    >>> read_rerank({"model": "clip-b32", "k": 64}), read_rerank({})
    ({'model': 'clip-b32', 'k': 64}, {})

    Raises:
        ValueError: no model is named, or k is no whole number from 1.
    """
    if not isinstance(pairs, Mapping) or not pairs:
        return pairs
    if not isinstance(pairs.get("model"), str):
        raise ValueError("needs model=NAME, which ranks all candidates, and may have k=N")
    k = pairs.get("k", 1)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k should be a whole number from 1, got {k!r}")
    return dict(pairs)
