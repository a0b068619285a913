"""The hub's libraries: kept quiet, kept off the network when asked to, and their errors told in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ttmbench._util import hub
from ttmbench.errors import DataError
from ttmbench.model_adapters._shared.pickled_weights import why_refused
from ttmbench.model_adapters._shared.requirements import what_to_install


@contextmanager
def quiet_hub(*, offline: bool = False, fetches: bool = False) -> Iterator[None]:
    """As `ttmbench._util.hub.quiet_hub`, and keeps ``transformers`` quiet too; arguments are the same."""
    from transformers.utils import logging

    with hub.quiet_hub(offline=offline, fetches=fetches):
        before = logging.get_verbosity()
        logging.set_verbosity_error()
        if not (fetches and sys.stderr.isatty()):
            logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(before)
            logging.enable_progress_bar()


def described(error: Exception) -> str:
    """Kind and text of an error in one line."""
    return f"{type(error).__name__}: {hub.one_line(error, 240)}"


def is_unreachable(error: Exception) -> bool:
    """Whether the hub gave no answer, or one that says that it cannot answer now."""
    status = hub.status_of(error)
    return status is None or status in hub.PASSING


def gated(repo: str, error: Exception) -> str | None:
    """What to do if the hub's answer is that terms have to be accepted; None if it is another one."""
    return hub.accept_terms(repo, f"https://huggingface.co/{repo}") if hub.trouble(error) == "gated" else None


def why_out_of_reach(error: Exception) -> str:
    """Why something is not to be had from the hub, in a few words."""
    status = hub.status_of(error)
    match hub.trouble(error):
        case "unknown":
            return "it has no such repository, or a private one: HF_TOKEN names an account"
        case "token":
            return hub.UNKNOWN_TOKEN
    if status in hub.PASSING:
        return f"it answered {status}, and again after {hub.TRIES} tries"
    if status is not None:
        return hub.one_line(error, 240)
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
    if hub.trouble(error) == "unknown revision":
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
    why = why_refused(error) if "weights_only" in str(error) else described(error)
    return DataError(f"{what} cannot be loaded ({why})")
