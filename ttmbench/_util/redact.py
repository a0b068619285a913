"""Keys, tokens and passwords, taken out of whatever is written or shown."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

GONE = "<redacted>"
_NAME = (
    r"(?i:[\w-]*(?:token|api[_-]?key|access[_-]?key|private[_-]?key|secret|secret[_-]?key|password|passwd|credentials?"
    r"|authorization))"
)
_QUERY_NAME = r"(?i:[\w-]*(?:token|key|secret|password|passwd|signature|sig|credential|auth|code))"
_NAMED = re.compile(rf"(?<![\w-])({_NAME})((?:[\"']?\s*[=:]\s*))(\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)")
_OPTION = re.compile(rf"(--{_NAME})(\s+)([^\s,]+)")
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)[\w.~+/=-]{8,}")
_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|(?:sk-|gsk_|xai-)[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{16,}"
    r"|github_pat_\w{16,}|AKIA[A-Z0-9]{12,}|AIza[\w-]{20,}|xox[abprs]-[\w-]{8,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
)
_USER_IN_URL = re.compile(r"(\w://)[^/?#\s\"']+@")  # up to the last @: a password may have one
_QUERY = re.compile(rf"([?&]{_QUERY_NAME}=)[^&\s#\"',]+")
_SHORTEST = 8  # a shorter value of an environment variable may be any word


def scrub(text: str) -> str:
    """A text without what is a secret by its form, or is the value of an environment variable named like one.

    >>> scrub("https://me:p@w@host/x?token=abc&a=1 and hf_abcdefghij")
    'https://<redacted>@host/x?token=<redacted>&a=1 and <redacted>'
    """
    return _scrubbed(text, _in_environment())


def _in_environment() -> tuple[str, ...]:
    """Values of environment variables that are named like a secret."""
    return tuple(value for name, value in os.environ.items() if len(value) >= _SHORTEST and re.fullmatch(_NAME, name))


@lru_cache(maxsize=50_000)  # a results document has the same words again and again, and is written after every task
def _scrubbed(text: str, secrets: tuple[str, ...]) -> str:
    for value in secrets:
        text = text.replace(value, GONE)
    text = _USER_IN_URL.sub(rf"\1{GONE}@", text) if "@" in text else text
    text = _QUERY.sub(rf"\1{GONE}", text) if "=" in text else text
    return _BEARER.sub(rf"\1\2{GONE}", _VALUE.sub(GONE, text))


def redact(arguments: Sequence[str]) -> str:
    """A command line as one string, with tokens, keys and passwords replaced.

    >>> redact(["ttmbench", "--model_args", "api_key=sk-12345678,model=x"])
    'ttmbench --model_args api_key=<redacted>,model=x'
    """
    text = scrub(" ".join(arguments))
    text = _OPTION.sub(rf"\1\2{GONE}", _NAMED.sub(rf"\1\2{GONE}", text))
    return text.encode("utf-8", "replace").decode("utf-8")  # what was no text on the command line


def redact_values(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with secret values replaced, at any depth.

    >>> redact_values({"model_args": [{"api_key": "x"}, "hf_abcdefghij"]})
    {'model_args': [{'api_key': '<redacted>'}, '<redacted>']}
    """
    clean: dict[str, Any] = {}
    for key, value in settings.items():
        if re.fullmatch(_NAME, str(key)) and not isinstance(value, dict | bool):
            clean[key] = GONE if value else value
        else:
            clean[key] = _redacted(value)
    return clean


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return redact_values(value)
    if isinstance(value, list | tuple):
        return [_redacted(one) for one in value]
    return redact([value]) if isinstance(value, str) else value


def scrub_values(value: Any, known: Collection[str] = ()) -> Any:
    """A JSON value with `scrub` applied to every text in it, and known secrets taken out."""
    # As `scrub` has it, what the caller knows comes first.
    return _scrub_all(value, (*sorted(known), *_in_environment()))


def _scrub_all(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return _scrubbed(value, secrets)
    if isinstance(value, dict):
        return {key: _scrub_all(one, secrets) for key, one in value.items()}
    return [_scrub_all(one, secrets) for one in value] if isinstance(value, list | tuple) else value


def secrets_of(settings: Any, named: bool = False) -> set[str]:
    """The values in settings that `redact_values` would replace by their name, to be taken out of messages too.

    >>> secrets_of({"model_args": {"api_key": "my-own-key"}})
    {'my-own-key'}
    """
    if isinstance(settings, dict):
        return {
            one for key, value in settings.items() for one in secrets_of(value, bool(re.fullmatch(_NAME, str(key))))
        }
    if isinstance(settings, list | tuple):
        return {one for value in settings for one in secrets_of(value, named)}
    return {settings} if named and isinstance(settings, str) and len(settings) > 3 else set()
