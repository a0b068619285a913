"""Trackio: a local database (TRACKIO_DIR), or a Space of the hub with ``space_id``."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttmbench._util.files import to_json
from ttmbench.plugins.trackers.series import COLUMNS, result_rows


class TrackioSink:
    """Writes curves by iteration, final numbers, a table and an artifact."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import trackio

        self._trackio: Any = trackio
        self._settings = dict(settings)

    def open(self, config: Mapping[str, Any]) -> None:
        """Begins a run."""
        self._run: Any = self._trackio.init(config=dict(config), embed=False, **self._settings)

    def curve(self, name: str, iteration: int, values: Mapping[str, float]) -> None:
        """A point of each curve."""
        self._run.log({f"{name}/{key}": value for key, value in values.items()}, step=iteration)

    def numbers(self, values: Mapping[str, float]) -> None:
        """Numbers at step 0."""
        self._run.log(dict(values), step=0)

    def close(self, document: Mapping[str, Any]) -> None:
        """Adds the table and the results document."""
        try:
            self._run.log({"results": self._trackio.Table(columns=list(COLUMNS), data=result_rows(document))}, step=0)
            artifact = self._trackio.Artifact("results", type="results", metadata={"status": document["status"]})
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "results.json"
                file.write_text(to_json(document), encoding="utf-8")
                artifact.add_file(str(file))
                self._run.log_artifact(artifact)
        finally:
            self._trackio.finish()


def sink(settings: Mapping[str, Any]) -> TrackioSink:
    """Trackio with these settings."""
    return TrackioSink(settings)
