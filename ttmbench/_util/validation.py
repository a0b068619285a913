"""Errors of pydantic in one sentence: which key, what is wrong with it, and a near name."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError


def first_error(error: ValidationError) -> Any:
    """The error to tell: an unknown key if there is one, since it often explains a missing one."""
    return min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")


def describe(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """A pydantic error in one sentence: the first culprit by key, what is wrong, and a near name if there is one."""
    from difflib import get_close_matches

    first = first_error(error)
    key = ".".join(str(part) for part in first["loc"] if "[" not in str(part))  # brackets: a branch of a union
    if first["type"] == "extra_forbidden":
        known = sorted(model.model_fields) if model else []
        near = get_close_matches(str(first["loc"][-1]), known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else (f"; known: {', '.join(known)}" if known else "")
        return f"unknown key '{key}'{hint}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"key '{key}' is missing"
    shown = repr(first["input"])
    got = f", got {shown}" if key and len(shown) < 80 else ""
    return f"'{key}': {message[0].lower()}{message[1:]}{got}" if key else message
