"""Every repository that the stand-in for the Hub can hold, and how its copy is written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from support import family_copies, hub_datasets, hub_models

COPIES: dict[str, Callable[..., None]] = {**family_copies.WRITERS, **hub_models.WRITERS, **hub_datasets.WRITERS}


def write_copies(root: Path, names: Iterable[str]) -> None:
    """Writes copies of repositories below the root of the stand-in; a copy that exists stays as it is."""
    import datasets

    from ttmbench._util.hub import quiet_hub

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings(), quiet_hub():
            warnings.simplefilter("ignore")
            for name in names:
                if not any((root / kind / name).exists() for kind in ("models", "datasets")):
                    COPIES[name](root)
    finally:
        if shown:
            datasets.enable_progress_bars()
