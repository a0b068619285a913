"""TensorBoard: event files below ``<dir>/<project>/<name>``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttmbench._util.files import safe_name
from ttmbench.plugins.trackers.series import COLUMNS, result_rows


class TensorboardSink:
    """Writes scalars, and the settings and the table of results as text."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._settings, self._make = settings, SummaryWriter

    def open(self, config: Mapping[str, Any]) -> None:
        """Begins a folder."""
        settings = self._settings
        parent = Path(settings.get("dir", "runs")) / safe_name(settings["project"])
        name = safe_name(settings["name"])
        taken = (number for number in range(2, 10_000) if not (parent / f"{name}-{number}").exists())
        folder = parent / (f"{name}-{next(taken)}" if (parent / name).exists() else name)
        self._writer = self._make(str(folder))
        self._writer.add_text("config", _code(config), 0)
        self._writer.flush()

    def curve(self, name: str, iteration: int, values: Mapping[str, float]) -> None:
        """Scalars with the iteration as step."""
        for key, value in values.items():
            self._writer.add_scalar(f"{name}/{key}", value, iteration)
        self._writer.flush()

    def numbers(self, values: Mapping[str, float]) -> None:
        """Scalars at step 0."""
        for key, value in values.items():
            self._writer.add_scalar(key, value, 0)
        self._writer.flush()

    def close(self, document: Mapping[str, Any]) -> None:
        """Adds how the run ended, and the table."""
        rows = [list(COLUMNS), ["---"] * len(COLUMNS), *result_rows(document)]
        table = "\n".join("| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |" for row in rows)
        self._writer.add_text("results", table, 0)
        ended = {key: document[key] for key in ("status", "errors", "run_key", "packages", "git_hash")}
        self._writer.add_text("run", _code(ended), 0)
        self._writer.close()


def _code(values: Mapping[str, Any]) -> str:
    """JSON as TensorBoard's Markdown shows it as it is: indented by four."""
    return "\n".join("    " + line for line in json.dumps(values, indent=2, ensure_ascii=False).splitlines())


def sink(settings: Mapping[str, Any]) -> TensorboardSink:
    """TensorBoard with these settings."""
    return TensorboardSink(settings)
