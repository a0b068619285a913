"""Checks what plugins register: names, tracks and targets in their form, callables that can be called."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from ttmbench.config import TTMConfig
from ttmbench.errors import UsageError
from ttmbench.types import AdapterSpec, MetricSpec, ModelCard, ScheduleSpec, SourceSpec, Track

KINDS: dict[str, type] = {
    "ttmbench_register_adapters": AdapterSpec,
    "ttmbench_register_sources": SourceSpec,
    "ttmbench_register_metrics": MetricSpec,
    "ttmbench_register_schedules": ScheduleSpec,
}
"""What each hook registers; folders of tasks are checked where they are read."""

SEVERAL_TRUE = ("undefined", "defined", "only")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:/-]*")
_WORD = re.compile(r"[A-Za-z0-9_]+")
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TARGET = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_TAKEN_ENDINGS = ("_stderr", "_seed_std")  # of keys beside a metric's own


def problem_of(item: Any, hook: str) -> str | None:
    """What is wrong with something that a plugin registers; None if nothing is.

    Args:
        item: what the hook returned, one of several.
        hook: a key of `KINDS`.
    """
    kind = KINDS[hook]
    if not isinstance(item, kind):
        return f"{type(item).__name__} is nothing to register here; it takes {kind.__name__}s of ttmbench"
    problem = next(_CHECKS[kind](item), None)
    label = getattr(item, "kind" if kind is SourceSpec else "name")
    return None if problem is None else f"{kind.__name__} {label!r}: {problem}"


def _adapter(spec: AdapterSpec) -> Iterator[str]:
    for what, texts in (("aliases", spec.aliases), ("needs", spec.needs)):
        if isinstance(texts, str) or not all(isinstance(text, str) and text for text in _iterated(texts)):
            yield f"{what} should be a tuple of texts, got {texts!r}"
    for name in (spec.name, *spec.aliases):
        yield from _name("name" if name == spec.name else "alias", name, _MODEL_NAME, "letters, digits and . _ + : / -")
    yield from _target("target", spec.target)
    yield from _summary(spec.summary)
    for what in ("model_args", "ttm_defaults"):
        given = getattr(spec, what)
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            yield f"{what} should be a mapping of names to values, got {given!r}"
    if spec.ttm_defaults:
        try:
            TTMConfig().with_changes(dict(spec.ttm_defaults), "ttm_defaults")
        except UsageError as error:
            yield str(error)
    if spec.card is not None and not isinstance(spec.card, ModelCard):
        yield f"card should be a ModelCard, got {type(spec.card).__name__}"


def _source(spec: SourceSpec) -> Iterator[str]:
    yield from _name("kind", spec.kind, _KIND, "letters, digits and . _ -")
    yield from _target("target", spec.target)
    if spec.needs != "":
        yield from _target("needs", spec.needs)
    yield from _summary(spec.summary)


def _metric(spec: MetricSpec) -> Iterator[str]:
    yield from _name("name", spec.name, _WORD, "letters, digits and _")
    if spec.name.endswith(_TAKEN_ENDINGS):
        yield f"a name cannot end in {' or '.join(_TAKEN_ENDINGS)}, which stand beside every metric in results"
    yield from _callable("compute", spec.compute)
    yield from _callable("defined", spec.defined)
    for what in ("ties", "chance"):
        if getattr(spec, what) is not None:
            yield from _callable(what, getattr(spec, what))
    models = ("forced_choice", "supervised")  # tracks of a model, not of a metric
    tracks = tuple(one for one in get_args(Track) if one not in models)
    for what, allowed in (
        ("scope", ("group", "global", "captions", "i2t", "t2i", "class")),
        ("track", tracks),
        ("several_true", SEVERAL_TRUE),
    ):
        if getattr(spec, what) not in allowed:
            yield f"{what} should be one of {', '.join(allowed)}, got {getattr(spec, what)!r}"
    if not isinstance(spec.higher_is_better, bool):
        yield f"higher_is_better should be True or False, got {spec.higher_is_better!r}"
    yield from _summary(spec.summary)


def _schedule(spec: ScheduleSpec) -> Iterator[str]:
    yield from _name("name", spec.name, _WORD, "letters, digits and _")
    yield from _callable("compute", spec.compute)
    yield from _summary(spec.summary)


_CHECKS: dict[type, Callable[[Any], Iterator[str]]] = {
    AdapterSpec: _adapter,
    SourceSpec: _source,
    MetricSpec: _metric,
    ScheduleSpec: _schedule,
}


def _name(what: str, name: Any, form: re.Pattern[str], allowed: str) -> Iterator[str]:
    if not isinstance(name, str) or not form.fullmatch(name):
        yield f"a {what} is made of {allowed}, got {name!r}"


def _target(what: str, target: Any) -> Iterator[str]:
    if not isinstance(target, str) or not _TARGET.fullmatch(target):
        yield f"{what} should be 'module:callable', got {target!r}"


def _callable(what: str, given: Any) -> Iterator[str]:
    if not callable(given):
        yield f"{what} should be a function, got {given!r}"


def _summary(given: Any) -> Iterator[str]:
    if not isinstance(given, str):
        yield f"summary should be a text, got {given!r}"


def _iterated(given: Any) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        return [None]
