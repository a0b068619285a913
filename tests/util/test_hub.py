"""Errors of the hub's libraries are told apart by their classes, and the libraries are put back as they were."""

from __future__ import annotations

import logging
from contextlib import suppress
from types import SimpleNamespace

import httpx2
import pytest
from huggingface_hub import constants, errors
from huggingface_hub.utils import are_progress_bars_disabled

from ttmbench._util.third_party import TRIES, patiently, quiet_hub, trouble


def answer(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://example.org/x"))


def raised_from(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


GATED = errors.GatedRepoError("x", response=answer(403))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (GATED, "gated"),
        (raised_from(OSError("x"), GATED), "gated"),
        (errors.RevisionNotFoundError("x", response=answer(404)), "unknown revision"),
        (errors.RepositoryNotFoundError("x", response=answer(401)), "unknown"),
        (errors.HfHubHTTPError("x", response=answer(401)), "token"),
        (errors.HfHubHTTPError("x", response=answer(403)), "refused"),
        (errors.HfHubHTTPError("x", response=answer(503)), "unreachable"),
        (errors.LocalEntryNotFoundError("x"), "unreachable"),
        (httpx2.ConnectError("x"), "unreachable"),
        (TimeoutError("x"), "unreachable"),
        (ValueError("gated, offline, not found, 404, HTTPError, connection"), "other"),
        (raised_from(ValueError("x"), FileNotFoundError("on the way")), "other"),
    ],
)
def test_errors_are_told_apart_by_class_and_never_by_words(error, kind):
    assert trouble(error) == kind


def test_a_library_is_quiet_inside_and_as_it_was_outside(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    logger = logging.getLogger("huggingface_hub")
    before = logger.level, are_progress_bars_disabled()
    with pytest.raises(KeyError), quiet_hub(offline=True):
        assert (logger.level, are_progress_bars_disabled(), constants.HF_HUB_OFFLINE) == (logging.ERROR, True, True)
        raise KeyError
    assert (logger.level, are_progress_bars_disabled(), constants.HF_HUB_OFFLINE) == (*before, False)
    with quiet_hub():
        assert not constants.HF_HUB_OFFLINE


class Refused(Exception):
    """An answer with an error's status."""

    def __init__(self, status: int) -> None:
        self.response = SimpleNamespace(status_code=status, headers={})


@pytest.mark.parametrize(("answers", "asked"), [((500, 503), 3), ((500,) * 9, TRIES), ((404,), 1)])
def test_a_busy_hub_is_asked_again(monkeypatch, answers, asked):
    """Its library gives up at the first error of some of its requests."""
    waits: list[float] = []
    monkeypatch.setattr("ttmbench._util.third_party.time", SimpleNamespace(sleep=waits.append))
    left, calls = list(answers), []

    def fetch() -> str:
        calls.append(1)
        if left:
            raise Refused(left.pop(0))
        return "there"

    found = None
    with suppress(Refused):
        found = patiently(fetch)
    assert (found, len(calls)) == ("there" if asked == len(answers) + 1 else None, asked)
    assert waits == [1.0, 2.0, 4.0][: asked - 1]
