"""Removes keys, tokens and passwords from everything that is written or shown."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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
_USER_IN_URL = re.compile(  # up to the last @: a password may have one; a path made of a URL has a single slash
    r"(\w://|\b(?:https?|s?ftps?|s3|gs|hf):/|\w\w:/(?=[^/?#\s\"'@]*:))[^/?#\s\"']+@"
)
_QUERY = re.compile(rf"([?&]{_QUERY_NAME}=)[^&\s#\"',]+")
SHORTEST = 8  # a shorter value of an environment variable may be any word
_VARIABLE = re.compile(r"(?i:[\w-]*(?:token|key|secret|password|passwd|credentials?|authorization))")
_NAMES_VARIABLE = re.compile(r"(?i)(\w+_env[\"']?\s*[=:]\s*[\"']?)([^\s,&\"']+)")
_LIKE_A_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,39}")
_URL_ARGUMENT = re.compile(r"(?i)(\w*url[\"']?\s*[=:]\s*[\"']?)(\w+://[^\s,\"']+)")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PASSWORD_IN_URL = re.compile(r"\w://[^/\s@:]*:([^/\s@]+)@")
_CHARACTER = re.compile(  # also in the escapes of URLs, JSON and HTML, and in escapes of escapes
    r"%(?:25)*(?P<url>[0-9a-f]{2})|\\+u(?P<json>[0-9a-f]{4})|\\+x(?P<hex>[0-9a-f]{2})"
    r"|&(?:amp;)*#x(?P<html>[0-9a-f]{1,5});|&(?:amp;)*#(?P<decimal>\d{1,6});|\\+(?P<escaped>[^\\])|(?P<plain>.)",
    re.IGNORECASE | re.DOTALL,
)


def without(text: str, secret: str) -> str:
    r"""A text without a secret, plain or escaped as in URLs, JSON or HTML, and without eight letters of it in a row.

    >>> without(r"bad key my\u002dsecret%2dkey!", "my-secret-key"), without("it begins with my-secret", "my-secret-key")
    ('bad key <redacted>!', 'it begins with <redacted>')
    """
    if len(secret) < SHORTEST or len(text) < SHORTEST:
        return text.replace(secret, GONE) if secret else text
    forms = [secret, base64.b64encode(secret.encode()).decode().rstrip("="), secret.encode().hex()]
    parts = {form[at : at + SHORTEST].lower() for form in forms for at in range(len(form) - SHORTEST + 1)}
    characters = list(_CHARACTER.finditer(text))
    read = "".join(map(_character, characters))
    gone = [False] * len(characters)
    for at in range(len(characters) - SHORTEST + 1):
        if read[at : at + SHORTEST] in parts:
            gone[at : at + SHORTEST] = [True] * SHORTEST
    pieces = []
    for match, hidden, before in zip(characters, gone, [False, *gone], strict=False):
        pieces.append((GONE if not before else "") if hidden else match.group())
    return "".join(pieces)


def _character(match: re.Match[str]) -> str:
    """The character that a match of `_CHARACTER` encodes, in lower case."""
    kind, text = match.lastgroup or "plain", match.group(match.lastgroup or "plain")
    if kind in ("plain", "escaped"):
        return text.lower()[0]
    return chr(min(int(text, 10 if kind == "decimal" else 16), 0x10FFFF)).lower()[0]


def secrets_in_url(url: str) -> list[str]:
    """Possible secrets in a URL: its password, and random parts of its path.

    >>> secrets_in_url("https://me:pass@host.org/t/9f8e7d6c5b4a39281706/v1")
    ['pass', '9f8e7d6c5b4a39281706']
    """
    path = re.sub(r"^\w+://[^/]*", "", url)
    return _PASSWORD_IN_URL.findall(url) + [part for part in re.split(r"[/?#&=]", path) if _may_be_a_key(part)]


def url_without_secrets(url: str) -> str:
    """A URL without possible secrets.

    >>> url_without_secrets("https://host.org/t/9f8e7d6c5b4a39281706/v1")
    'https://host.org/t/<redacted>/v1'
    """
    for secret in sorted(secrets_in_url(url), key=len, reverse=True):
        url = url.replace(secret, GONE)
    return scrub(url)


def is_variable_name(text: str) -> bool:
    """Whether a text may be shown as the name of an environment variable: it looks like one, or is one."""
    return text in os.environ or bool(_LIKE_A_VARIABLE.fullmatch(text) and not _may_be_a_key(text))


def _may_be_a_key(part: str) -> bool:
    if _VALUE.search(part) or _UUID.fullmatch(part):
        return True
    longest = max(re.split(r"[-_.~]", part), key=len)
    return len(longest) >= 16 and len(re.findall(r"\d(?=[A-Za-z])|[A-Za-z](?=\d)", longest)) >= 4


def scrub(text: str, secrets: tuple[str, ...] | None = None) -> str:
    """A text without secrets, recognised by their form or as values of environment variables named like a secret.

    For many texts at once, ``secrets`` is `secrets_in_environment`.

    >>> scrub("https://me:p@w@host/x?token=abc&a=1 and hf_abcdefghij")
    'https://<redacted>@host/x?token=<redacted>&a=1 and <redacted>'
    >>> scrub("/data/s3:/me:pass@bucket/x and C:/a@b/x")
    '/data/s3:/<redacted>@bucket/x and C:/a@b/x'
    """
    return _scrubbed(text, secrets_in_environment() if secrets is None else secrets)


def secrets_in_environment() -> tuple[str, ...]:
    """Values of environment variables named like a secret."""
    return tuple(value for name, value in os.environ.items() if len(value) >= SHORTEST and _VARIABLE.fullmatch(name))


@lru_cache(maxsize=50_000)  # a results document repeats its words, and is written after every task
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
    text = " ".join(arguments)
    if "_env" in text.lower():
        for _, name in _NAMES_VARIABLE.findall(text):
            text = _without_value_of(name, text)
        text = _NAMES_VARIABLE.sub(lambda match: match[1] + (match[2] if is_variable_name(match[2]) else GONE), text)
    if "url" in text.lower():
        text = _URL_ARGUMENT.sub(lambda match: match[1] + url_without_secrets(match[2]), text)
    text = scrub(text)
    text = _OPTION.sub(rf"\1\2{GONE}", _NAMED.sub(rf"\1\2{GONE}", text))
    return text.encode("utf-8", "replace").decode("utf-8")  # what was not a text on the command line


def redact_values(settings: Mapping[str, object]) -> dict[str, Any]:
    """Settings with secret values replaced, at any depth.

    >>> redact_values({"model_args": [{"api_key": "x"}, "hf_abcdefghij"]})
    {'model_args': [{'api_key': '<redacted>'}, '<redacted>']}
    """
    variables = [value for key, value in settings.items() if str(key).endswith("_env") and isinstance(value, str)]
    clean: dict[str, Any] = {}
    for key, value in settings.items():
        if re.fullmatch(_NAME, str(key)) and not isinstance(value, dict | bool):
            clean[key] = GONE if value else value
        elif isinstance(value, str) and value in variables and str(key).endswith("_env"):
            clean[key] = value if is_variable_name(value) else GONE
        elif isinstance(value, str):
            for name in variables:
                value = _without_value_of(name, value)
            clean[key] = redact([url_without_secrets(value) if str(key).lower().endswith("url") else value])
        else:
            clean[key] = _redacted(value)
    return clean


def _without_value_of(variable: str, text: str) -> str:
    value = os.environ.get(variable, "").strip()
    return text.replace(value, GONE) if len(value) >= SHORTEST else text


def _redacted(value: object) -> object:
    if isinstance(value, dict):
        return redact_values(value)
    if isinstance(value, list | tuple):
        return [_redacted(item) for item in value]
    return redact([value]) if isinstance(value, str) else value


def map_texts(value: object, change: Callable[[str], str], keys: bool = False) -> Any:
    """A JSON value with every text in it changed, also those of keys if ``keys``."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {map_texts(k, change) if keys else k: map_texts(inner, change, keys) for k, inner in value.items()}
    return [map_texts(inner, change, keys) for inner in value] if isinstance(value, list | tuple) else value


def scrub_values(value: object, known: Collection[str] = ()) -> Any:
    """A JSON value with `scrub` applied to every text in it, and known secrets removed."""
    secrets = (*sorted(known), *secrets_in_environment())
    return map_texts(value, lambda text: _scrubbed(text, secrets))


def secrets_of(settings: object, named: bool = False) -> set[str]:
    """The values in settings that `redact_values` replaces because of their name.

    >>> secrets_of({"model_args": {"api_key": "my-own-key"}})
    {'my-own-key'}
    """
    if isinstance(settings, dict):
        return {
            secret
            for key, value in settings.items()
            for secret in secrets_of(value, bool(re.fullmatch(_NAME, str(key))))
        }
    if isinstance(settings, list | tuple):
        return {secret for value in settings for secret in secrets_of(value, named)}
    return {settings} if named and isinstance(settings, str) and len(settings) > 3 else set()
