"""The files of an analysis: its document, and its figure as PNG and SVG."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from ttmbench._util.files import safe_name, to_json, write_atomically
from ttmbench.errors import UsageError
from ttmbench.report import plots


def write_analysis(output: Path, document: dict[str, Any], started: datetime) -> list[Path]:
    """Writes an analysis into the folder of its model.

    Args:
        output: folder that holds a folder a model.
        document: what `ttmbench.evaluator.analyze.analyze_tasks` gives.
        started: time in the file names.

    Returns:
        The files.

    Raises:
        UsageError: the folder cannot be written to.
    """
    folder = output / safe_name(document["model_name"])
    what = document.get("task") or f"{len(document['tasks'])}_tasks"
    stem = f"{document['analysis']}_{what}_{started.strftime('%Y-%m-%dT%H-%M-%S.%f')}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output_path {folder} cannot be written to: {error.strerror or error}") from None
    files = [folder / f"{stem}.json", folder / f"{stem}.png", folder / f"{stem}.svg"]
    write_atomically(files[0], lambda path: path.write_text(to_json(document), encoding="utf-8"))
    for file in files[1:]:
        write_atomically(file, lambda path, kind=file.suffix[1:]: plots.save(document, path, kind))  # type: ignore[misc]
    return files
