"""Which trackers a run has: names, settings and libraries are checked before anything is loaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ttmbench._util.files import safe_name
from ttmbench.config import RunConfig
from ttmbench.errors import UsageError

if TYPE_CHECKING:
    from ttmbench.plugins.trackers.tracker import Sink, TrackerPlugin


@dataclass(frozen=True)
class TrackerSpec:
    """A tracker by name.

    Attributes:
        module: what makes its sink: ``sink(settings)``.
        library: what is imported to see that it is there.
        settings: keys of ``--track_args`` that it takes.
    """

    module: str
    library: str
    settings: frozenset[str]


TRACKERS = {
    "wandb": TrackerSpec(
        "ttmbench.plugins.trackers.wandb",
        "wandb",
        frozenset({"project", "name", "dir", "group", "mode", "entity", "tags", "notes", "job_type"}),
    ),
    "trackio": TrackerSpec(
        "ttmbench.plugins.trackers.trackio", "trackio", frozenset({"project", "name", "group", "space_id", "private"})
    ),
    "tensorboard": TrackerSpec(
        "ttmbench.plugins.trackers.tensorboard", "tensorboard", frozenset({"project", "name", "dir"})
    ),
}


def make_trackers(config: RunConfig) -> list[tuple[str, TrackerPlugin]]:
    """The trackers of a run, none of them open yet, as plugins.

    Args:
        config: the run.

    Returns:
        (plugin name, plugin) of each, in the order of ``track``.

    Raises:
        UsageError: a library is not installed, or no tracker of the run takes a setting.
    """
    chosen: dict[str, TrackerSpec] = {name: TRACKERS[name] for name in dict.fromkeys(config.track)}
    settings = _settings(config, chosen)
    if not chosen:
        return []
    from ttmbench.plugins.trackers.tracker import TrackerPlugin

    return [
        (f"tracker {name}", TrackerPlugin(name, _sink(name, spec, settings[name]))) for name, spec in chosen.items()
    ]


def _settings(config: RunConfig, chosen: Mapping[str, TrackerSpec]) -> dict[str, dict[str, Any]]:
    """What each tracker is set to: ``key=value`` goes to all that take the key, ``tracker.key=value`` to one."""
    name = f"{safe_name(config.model_name)}-{datetime.now():%Y-%m-%dT%H-%M-%S}"
    found: dict[str, dict[str, Any]] = {one: {"project": "ttmbench", "name": name} for one in chosen}
    for key, value in sorted(config.track_args.items(), key=lambda item: "." in item[0]):
        tracker, dot, option = key.partition(".")
        takers = [tracker] if dot else [one for one, spec in chosen.items() if key in spec.settings]
        option = option if dot else key
        if not takers or any(one not in chosen or option not in chosen[one].settings for one in takers):
            known = "; ".join(f"{one}: {', '.join(sorted(spec.settings))}" for one, spec in chosen.items())
            raise UsageError(f"--track_args {key}: no tracker of this run takes it ({known or 'there is none'})")
        for one in takers:
            found[one][option] = str(value) if option in ("project", "name", "dir", "group") else value
    return found


def _sink(name: str, spec: TrackerSpec, settings: Mapping[str, Any]) -> Sink:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a library says of its own imports
            import_module(spec.library)
            make: Callable[[Mapping[str, Any]], Sink] = import_module(spec.module).sink
            return make(settings)  # imports what it needs of the library, and opens nothing
    except Exception as error:
        why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
        raise UsageError(f"--track {name}: {spec.library} {why}; pip install 'ttmbench[{name}]'") from None
