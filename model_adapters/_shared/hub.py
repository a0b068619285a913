"""The hub's libraries: kept quiet, kept off the network when asked to, and their errors told in one line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path
from typing import TypeVar

from ttmbench.errors import DataError
from ttmbench.model_adapters._shared.requirements import what_to_install

T = TypeVar("T")
PASSING = (429, 500, 502, 503, 504)  # what a server answers when the same question may be answered a moment later
TRIES, LONGEST_WAIT = 4, 60.0


@contextmanager
def quiet_hub(*, offline: bool = False, fetches: bool = False) -> Iterator[None]:
    """Keeps loading bars, retries and advice of the libraries off the screen: errors are raised anyway.

    Args:
        offline: the libraries do not try the network at all, not even where they cannot be told so one by one.
        fetches: large files may come; on a terminal their bars are shown.
    """
    from huggingface_hub import constants
    from transformers.utils import logging

    hub_logger = getLogger("huggingface_hub")
    before = hub_logger.level, logging.get_verbosity(), constants.HF_HUB_OFFLINE
    hub_logger.setLevel("ERROR")
    logging.set_verbosity_error()
    if not (fetches and sys.stderr.isatty()):
        logging.disable_progress_bar()
    if offline:
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        hub_logger.setLevel(before[0])
        logging.set_verbosity(before[1])
        logging.enable_progress_bar()
        constants.HF_HUB_OFFLINE = before[2]


def patiently(ask: Callable[[], T]) -> T:
    """Calls a function of the hub's libraries; what a busy server refuses is asked again, `TRIES` times in all.

    The wait is what the server names (``Retry-After``), at most a minute; else one second, two, four.
    """
    for attempt in range(TRIES):
        try:
            return ask()
        except Exception as error:
            if attempt == TRIES - 1 or _status(error) not in PASSING:
                raise
            time.sleep(_wait(error, 2.0**attempt))
    raise AssertionError("the last try returns or raises")


def described(error: Exception) -> str:
    """Kind and text of an error in one line."""
    return f"{type(error).__name__}: {_one_line(error)}"


def is_unreachable(error: Exception) -> bool:
    """Whether the hub gave no answer, or one that says that it cannot answer now."""
    status = _status(error)
    return status is None or status in PASSING


def gated(repo: str, error: Exception) -> str | None:
    """What to do if the hub's answer is that terms have to be accepted; None if it is another one."""
    from huggingface_hub.errors import GatedRepoError

    if not any(isinstance(one, GatedRepoError) for one in _chain(error)):
        return None
    return (
        f"{repo} is gated: accept its terms at https://huggingface.co/{repo} and set HF_TOKEN "
        "to a token of that account"
    )


def why_out_of_reach(error: Exception) -> str:
    """Why something is not to be had from the hub, in a few words."""
    from huggingface_hub.errors import RepositoryNotFoundError

    status = _status(error)
    if any(isinstance(one, RepositoryNotFoundError) for one in _chain(error)):
        return "it has no such repository, or a private one: HF_TOKEN names an account"
    if status == 401:
        return (
            "it does not know the token that it was shown: HF_TOKEN, or what `hf auth login` stored; renew or unset it"
        )
    if status is not None:
        return f"it answered {status}, and again after {TRIES} tries" if status in PASSING else _one_line(error)
    return "it is not in the cache and the hub cannot be reached"


def not_cached(name: str, revision: str | None) -> DataError:
    """The error to raise offline for a model that has not been fetched."""
    from huggingface_hub import constants

    at = f" at revision {revision}" if revision else ""
    return DataError(
        f"model {name} is neither a folder here nor in {constants.HF_HUB_CACHE}{at}; run once with a network and "
        "without --offline, or `ttmbench download --model NAME`; the built-in model 'tiny-clip' needs no hub"
    )


def out_of_reach(name: str, revision: str | None, error: Exception) -> DataError:
    """The error to raise for a model that cannot be had: terms, a name that is none, a revision, or no network."""
    from huggingface_hub.errors import RevisionNotFoundError

    if isinstance(error, RevisionNotFoundError):
        return DataError(f"{name} has no revision {revision} on the hub; --model_args revision=main takes its newest")
    return DataError(
        gated(name, error)
        or f"model {name} is neither a folder here nor to be had from the hub ({why_out_of_reach(error)}); "
        "the built-in model 'tiny-clip' needs no hub"
    )


def not_loaded(name: str, error: Exception) -> DataError:
    """The error to raise for files that are here and cannot be loaded."""
    what = f"the model in folder {name}" if Path(name).is_dir() else f"model {name}"
    command = what_to_install(error)
    if command is not None:
        return DataError(f"{what} needs packages that are not installed: `{command}`")
    return DataError(f"{what} cannot be loaded ({described(error)})")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it was raised from."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _status(error: Exception) -> int | None:
    """What the server answered, if it did."""
    for one in _chain(error):
        status = getattr(getattr(one, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _wait(error: Exception, otherwise: float) -> float:
    for one in _chain(error):
        headers = getattr(getattr(one, "response", None), "headers", None)
        named = headers.get("Retry-After", "") if headers is not None else ""
        if named.isdigit():
            return min(float(named), LONGEST_WAIT)
    return otherwise


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:240]
