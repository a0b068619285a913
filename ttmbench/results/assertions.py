"""Conditions on results, for scripts that have to stop when a number is not what it should be."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Mapping, Sequence

from ttmbench.errors import AssertionNotMet, UsageError
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import CHOICE, SLASH, base_metric, key_of

COVERAGE = "coverage"  # share of a task's groups whose images are there
_ASSERTION = re.compile(
    r"^(?P<task>[A-Za-z0-9_.-]+(?:/[^<>=,./]+)?)\.(?:(?P<metric>\w+),(?P<filter>\w+)|coverage)\s*(?P<sign>>=|<=|>|<|==)\s*"
    r"(?P<value>[-+0-9.eE]+)$"
)


def parse_assertion(text: str) -> tuple[str, str, str, float]:
    """An assertion's task, result key, sign and value; UsageError if it cannot be read.

    A mean over values of tags is ``task/name``.

    >>> parse_assertion("colorswap.group_match,ttm>=0.9")
    ('colorswap', 'group_match,ttm', '>=', 0.9)
    >>> parse_assertion("valse/over_7_pieces.text_score,none<1")[0]
    'valse/over_7_pieces'
    >>> parse_assertion("svo_probes.coverage>=0.5")
    ('svo_probes', 'coverage', '>=', 0.5)
    """
    match = _ASSERTION.match(text.strip())
    if match is None:
        raise UsageError(f"--assert {text!r} cannot be read; write it like 'colorswap.group_match,ttm>=0.9'")
    try:
        value = float(match["value"])
    except ValueError:
        raise UsageError(f"--assert {text!r}: {match['value']} is not a number") from None
    key = COVERAGE if match["metric"] is None else key_of(match["metric"], match["filter"])
    return match["task"], key, match["sign"], value


def check_names(
    assertions: Sequence[str], metrics: Mapping[str, Sequence[str]], filters: Sequence[str] | None = None
) -> None:
    """UsageError for an assertion on a number that the run will not have; it names the known ones.

    ``metrics`` are by task and mean over values of tags; ``filters`` is None where the filters are not known yet.
    """
    for text in assertions:
        task, key, _, _ = parse_assertion(text)
        if task not in metrics:
            raise UsageError(f"--assert {text!r}: no task '{task}' here; {_known(task, metrics)}")
        if key == COVERAGE:
            continue
        metric, _, name = key.partition(",")
        if base_metric(metric) not in metrics[task] and name != CHOICE:
            raise UsageError(
                f"--assert {text!r}: task '{task}' has no metric '{metric}'; {_known(metric, metrics[task])}"
            )
        if filters is not None and name not in filters:
            raise UsageError(f"--assert {text!r}: there will be no filter '{name}'; {_known(name, filters)}")


def _known(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"


def check_assertions(assertions: Sequence[str], document: ResultsDocument) -> None:
    """Raises AssertionNotMet, naming each assertion that a results document does not meet."""
    compare = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
    failures = []
    for text in assertions:
        task, key, sign, wanted = parse_assertion(text)
        value = _value(document, task, key)
        if value is None:
            failures.append(f"{text}: the run has no such number")
        elif not compare[sign](value, wanted):
            failures.append(f"{text}: it is {value:.6g}")
    if failures:
        raise AssertionNotMet("; ".join(failures))


def _value(document: ResultsDocument, task: str, key: str) -> float | None:
    """The number that an assertion is about; None if there is none."""
    name, _, mean = task.partition(SLASH)
    if key == COVERAGE and task in document.results:
        coverage = document.datasets[task].coverage
        return 1.0 if coverage is None else coverage.here / coverage.rows
    if not mean:
        return document.results.get(name, {}).get(key)
    means = document.tag_means.get(name, {})
    return means[mean].numbers.get(key) if mean in means else None
