"""Conditions on results, for scripts that have to stop when a number is not what it should be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ttmbench.errors import AssertionNotMet, UsageError
from ttmbench.results.labels import key_of

_ASSERTION = re.compile(
    r"^(?P<task>[A-Za-z0-9_.-]+)\.(?P<metric>\w+),(?P<filter>\w+)\s*(?P<sign>>=|<=|>|<|==)\s*(?P<value>[-+0-9.eE]+)$"
)


def parse_assertion(text: str) -> tuple[str, str, str, float]:
    """An assertion's task, result key, sign and value; UsageError if it cannot be read.

    >>> parse_assertion("colorswap.group_match,ttm>=0.9")
    ('colorswap', 'group_match,ttm', '>=', 0.9)
    """
    found = _ASSERTION.match(text.strip())
    if found is None:
        raise UsageError(f"--assert {text!r} cannot be read; write it like 'colorswap.group_match,ttm>=0.9'")
    try:
        value = float(found["value"])
    except ValueError:
        raise UsageError(f"--assert {text!r}: {found['value']} is no number") from None
    return found["task"], key_of(found["metric"], found["filter"]), found["sign"], value


def check_assertions(assertions: Sequence[str], document: Mapping[str, Any]) -> None:
    """Raises AssertionNotMet, naming each assertion that a results document does not meet."""
    compare = {
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        "<": lambda a, b: a < b,
        "==": lambda a, b: a == b,
    }
    failures = []
    for text in assertions:
        task, key, sign, wanted = parse_assertion(text)
        value = document["results"].get(task, {}).get(key)
        if value is None:
            failures.append(f"{text}: the run has no such number")
        elif not compare[sign](value, wanted):
            failures.append(f"{text}: it is {value:.6g}")
    if failures:
        raise AssertionNotMet("; ".join(failures))
