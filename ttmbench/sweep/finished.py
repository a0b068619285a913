"""What of a sweep is done already, by the files that are there. Nothing is loaded for it but seeds' last files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ttmbench._util.files import file_digest
from ttmbench._util.text import Unreadable, read_json
from ttmbench.evaluator.unit import Unit, units_of
from ttmbench.sweep.plan import PlannedCell


def stages_left(root: Path, one: PlannedCell) -> list[list[Unit]]:
    """What is left to do of a cell: nothing if its document says so, and no seed of which all files are there."""
    config, chosen = one.cell.config_at(root), one.chosen
    stages = units_of(one.cell)
    folder = root / one.cell.folder
    if not folder.is_dir():
        return stages
    key = chosen.key(config).sha256
    if is_done(root / one.cell.document, key):
        return []
    left = [unit for unit in _of_kind(stages, "seed") if not _seed_is_done(root, unit, key)]
    scores = _of_kind(stages, "groups")
    if not left and _of_kind(stages, "seed"):
        scores = []  # a run that finds every seed needs them once, and takes them from the cache
    return [stage for stage in (scores, left, _of_kind(stages, "run")) if stage]


def why_again(root: Path, one: PlannedCell) -> str | None:
    """What changed since a cell was done, for the user; None if it never was, or if it is another command now."""
    try:
        document = read_json(root / one.cell.document)
    except Unreadable:
        return None
    if not isinstance(document, dict) or document.get("status") != "done":
        return None
    return one.chosen.key(one.cell.config_at(root)).changes_since(document)


def _of_kind(stages: Sequence[Sequence[Unit]], kind: str) -> list[Unit]:
    """The units of one kind."""
    return [unit for stage in stages for unit in stage if unit.kind == kind]


def is_done(path: Path, key: str) -> bool:
    """Whether a document says that a run of this key is done, and the files beside it are as it wrote them.

    Whether model and data are still the same is not looked at: nothing is loaded here.
    """
    try:
        document = read_json(path)
    except Unreadable:
        return False
    if not isinstance(document, dict) or (document.get("status"), document.get("run_key")) != ("done", key):
        return False
    artifacts = document.get("artifacts", {})
    try:
        return all(file_digest(path.parent / Path(name).name) == about["sha256"] for name, about in artifacts.items())
    except OSError:
        return False


def _seed_is_done(root: Path, unit: Unit, key: str) -> bool:
    from ttmbench.evaluator.partial_runs import seed_is_done  # imports torch; only where there is something to look at

    return seed_is_done(unit.cell.config_at(root), unit.cell.task, unit.part, key)
