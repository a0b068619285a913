"""What the checkpoints of a run hold while it runs."""

from __future__ import annotations

from pathlib import Path

from ttmbench._util.file_io import Unreadable, load_sealed


def finished_iterations(folder: Path) -> list[float]:
    """The seconds of every finished iteration of the seeds in a folder; none where a file is replaced meanwhile."""
    files = sorted(folder.rglob("seed_*.safetensors"))
    try:
        return [step["seconds"] for file in files for step in load_sealed(file)[1]["steps"]]
    except Unreadable:
        return []
