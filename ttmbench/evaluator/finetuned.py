"""What a folder of weights says of its own finetuning: by it every later run knows that its model is supervised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttmbench._util.files import to_json, write_atomically
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import DataError
from ttmbench.types import ModelFiles

RECORD = "ttmbench_finetune.json"
KIND = "finetuning"


def finetuned(adapter: object) -> dict[str, Any] | None:
    """The record of the finetuning that made a model's weights; None if no record lies beside them.

    Args:
        adapter: the model, with or without ``files``.

    Returns:
        The record, as `ttmbench.evaluator.finetune` wrote it.

    Raises:
        DataError: it is damaged, so that nobody can tell what the model was trained on.
    """
    files = getattr(adapter, "files", None)
    return read_record(files.folder) if isinstance(files, ModelFiles) else None


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record in a folder; None if there is none. Errors as for `finetuned`."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        content = read_json(path)
    except Unreadable as error:
        raise DataError(f"{path} {error}; it says what the weights beside it were finetuned on") from None
    tasks = content.get("tasks") if isinstance(content, dict) and content.get("kind") == KIND else None
    sound = isinstance(tasks, list) and all(isinstance(one, dict) and isinstance(one.get("task"), str) for one in tasks)
    if not sound or not all(isinstance(name, str) for name in content.get("trained_on") or ()):
        raise DataError(f"{path} is no record of a finetuning, which says what the weights beside it were trained on")
    return dict(content)


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Writes a record into a folder of weights, in one step."""
    write_atomically(folder / RECORD, lambda path: path.write_text(to_json(record), encoding="utf-8"))


def shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """What results say of a finetuning (``model_info.finetuned``): on what, how, and from which weights."""
    return {key: record.get(key) for key in ("tasks", "loss", "hyperparameters", "preset", "seed", "base")}


def loads_as(target: str, model: str, folder: str) -> tuple[str, dict[str, Any]]:
    """How a run takes the weights of a finetuning.

    Args:
        target: of the adapter that was finetuned (``module:Class``).
        model: its name.
        folder: of the weights.

    Returns:
        The model and its arguments.
    """
    kind = target.partition(":")[0].rpartition(".")[2]
    name = {"open_clip": "open_clip", "tiny_clip": "hf"}.get(kind, model)
    return name, {"model": f"local-dir:{folder}"} if kind == "open_clip" else {"pretrained": folder}


def fits_note(record: Mapping[str, Any] | None, task: str) -> list[str]:
    """A sentence for a task that the model was finetuned on; none for others."""
    for one in (record or {}).get("tasks", ()):
        if one["task"] == task:
            return [f"the model was finetuned on groups of {one['task']}: the numbers say how well it fits them"]
    return []
