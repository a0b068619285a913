"""The Hub's libraries: silenced, kept offline, asked again, and their errors classified."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from logging import getLogger
from typing import Any, Literal, TypeVar

UNKNOWN_TOKEN = (
    "the hub does not know the token that it was shown: HF_TOKEN, or what `hf auth login` stored; renew or unset it"
)
ACCEPT_TERMS = "it is gated: accept its terms at {} and set HF_TOKEN to a token of that account"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
OPEN_CLIP_CONFIG, MODULES = "open_clip_config.json", "modules.json"
PASSING = (429, 500, 502, 503, 504)  # statuses of temporary errors
TRIES = 4
T = TypeVar("T")
Trouble = Literal["gated", "unknown revision", "unknown", "token", "unreachable", "refused", "other"]


@contextmanager
def quiet_hub(*, offline: bool = False, fetches: bool = False) -> Iterator[None]:
    """Hides progress bars, retries and advice of ``huggingface_hub`` and ``transformers``.

    ``offline``: it and ``datasets`` never use the network. ``fetches``: on a terminal, bars of large files are shown.
    """
    from huggingface_hub import constants, utils

    tables: Any = sys.modules.get("datasets")  # or a folder of the user's that has this name
    with ExitStack() as before:
        for logger in map(getLogger, ("huggingface_hub", "transformers")):
            before.callback(logger.setLevel, logger.level)
            logger.setLevel("ERROR")
        if offline:
            before.callback(getattr(utils, "reset_sessions", bool))  # before 1.0 one that was made offline stays so
        for bars, switch in ((utils, constants), *([(tables, tables.config)] if hasattr(tables, "config") else [])):
            if not (bars.are_progress_bars_disabled() or (fetches and sys.stderr.isatty())):
                before.callback(bars.enable_progress_bars)
                bars.disable_progress_bars()
            if offline:
                before.callback(setattr, switch, "HF_HUB_OFFLINE", switch.HF_HUB_OFFLINE)
                switch.HF_HUB_OFFLINE = True
        models: Any = sys.modules.get("transformers.utils.logging")
        if models is not None:
            before.callback(models.enable_progress_bar)
            models.disable_progress_bar()
        yield


def trouble(error: BaseException) -> Trouble:
    """Classifies an error of ``huggingface_hub`` or of a library that wraps it.

    ``unknown``: it does not exist, or this account may not see it. ``token``: the Hub does not know the token.
    ``unreachable``: it is not cached and there is no answer (yet). ``refused``: another error status.
    """
    from huggingface_hub import errors

    wrapped, status = chain(error), status_of(error)
    kinds: dict[type, Trouble] = {errors.GatedRepoError: "gated", errors.RevisionNotFoundError: "unknown revision"}
    for named, kind in (kinds | {errors.RepositoryNotFoundError: "unknown"}).items():
        if any(isinstance(cause, named) for cause in wrapped):
            return kind
    # For other classes only the error itself counts, not those that it was raised from.
    missing = (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError, TimeoutError)
    of_client = {"TransportError", "ConnectionError", "Timeout"} & {kind.__name__ for kind in type(error).__mro__}
    if status in PASSING or isinstance(error, missing) or (status is None and of_client):
        return "unreachable"
    if status == 401:
        return "token"
    if isinstance(error, FileNotFoundError | errors.EntryNotFoundError):
        return "unknown"
    return "other" if status is None else "refused"


def is_busy(error: Exception) -> bool:
    """What not all of the Hub's libraries try again: a busy server, and a body that breaks, with older versions."""
    return status_of(error) in PASSING or type(error).__name__ == "ChunkedEncodingError"


def patiently(ask: Callable[[], T], may_pass: Callable[[Exception], bool] = is_busy, tries: int = TRIES) -> T:
    """Calls a function up to ``tries`` times while its error may pass, as one of the Hub's does when it is busy."""
    for attempt in range(tries - 1):
        try:
            return ask()
        except Exception as error:
            if not may_pass(error):
                raise
            time.sleep(2.0**attempt)
    return ask()


def chain(error: BaseException | None) -> list[BaseException]:
    """An error and those that it was raised from, suppressed ones too."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return seen


def status_of(error: BaseException) -> int | None:
    """The server's status, if it answered."""
    statuses = (getattr(getattr(cause, "response", None), "status_code", None) for cause in chain(error))
    return next((status for status in statuses if isinstance(status, int)), None)
