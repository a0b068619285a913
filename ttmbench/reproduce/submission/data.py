"""A task's data, where they lie on this machine: are the submission's numbers of these groups?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ttmbench.config import RunConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import OutOfReachError, TtmbenchError
from ttmbench.evaluator.score_task import load_data
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.types import Group


def data_at_hand(
    registry: Registry,
    task: TaskFile,
    config: RunConfig,
    fingerprint: str,
    data_dir: str | Path | None,
    findings: Findings,
) -> Sequence[Group] | None:
    """Reads a task's data without the network, and compares their digest.

    Args:
        registry: sources.
        task: of this package.
        config: of the run; its limit counts.
        fingerprint: of the data, as the document has it.
        data_dir: folder of data files.
        findings: takes another digest.

    Returns:
        The groups; None if the data are not here, or are others.
    """
    from ttmbench.scoring.fingerprint import Fingerprint  # with torch, which no `--help` should wait for

    name = task.spec.task
    here = config.model_copy(update={"offline": True, "data_dir": None if data_dir is None else str(data_dir)})
    try:
        groups = load_data(registry, here, task, None).groups
    except (OutOfReachError, TtmbenchError) as error:
        findings.notes.append(f"{name}: its data are not at hand, so their digest is not compared ({str(error)[:200]})")
        return None
    found = Fingerprint(groups, None)
    found.add_remaining()
    by = "the data at hand give"
    return groups if findings.same(f"task_hashes.{name}", fingerprint, found.hexdigest(), by) else None
