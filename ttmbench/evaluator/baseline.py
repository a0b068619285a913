"""What ``--baseline`` adds to the results document. Groups are paired where both runs have their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ttmbench._util.files import file_digest
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import UsageError
from ttmbench.results.comparison import adjust_for_several, compare_runs, why_not_same
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import key_of
from ttmbench.results.numbers import Number, numbers_of
from ttmbench.results.stored_runs import StoredRun, TaskGroups, read_run
from ttmbench.types import Record

THIS = Path("this run")
_ADVICE = "; `ttmbench compare --allow_different` compares those whose ids they share"


@dataclass(frozen=True)
class Baseline:
    """The run to compare with, as it was when this one began."""

    run: StoredRun  # its document, and the values of its groups for tasks that have samples
    sha256: str  # of its document

    @classmethod
    def read(cls, path: Path, tasks: Mapping[str, TaskFile]) -> Baseline:
        """Reads a results document and its samples; UsageError if it has none of the tasks or other versions."""
        baseline = cls(read_run(path, need_samples=False), file_digest(path))
        baseline._check_tasks({name: task.spec.version for name, task in tasks.items()})
        return baseline

    def _check_tasks(self, versions: Mapping[str, int]) -> None:
        if not any(task in self.run.document.results for task in versions):
            raise UsageError(f"--baseline {self.run.path}: has none of this run's tasks ({', '.join(versions)})")
        for task, version in versions.items():
            before = self.run.document.versions.get(task, version)
            if before != version:
                raise UsageError(
                    f"task '{task}' has version {before} in {self.run.path} and {version} in {THIS}: they are not the "
                    f"same groups{_ADVICE}"
                )

    def entry(self, document: ResultsDocument, groups: Mapping[str, TaskGroups], iterations: int, seed: int) -> Record:
        """The document's record of the comparison; ``refused`` says why there are no rows, or is None."""
        about = {"file": str(self.run.path), "sha256": self.sha256, "model_name": self.run.name}
        this = StoredRun(THIS, document, groups)
        try:
            rows = self._rows(this, iterations, seed)
        except UsageError as error:
            return {**about, "rows": [], "refused": f"--baseline: {error}"}
        return {**about, "rows": rows, "refused": None}

    def _rows(self, this: StoredRun, iterations: int, seed: int) -> list[Record]:
        before = {(number.task, number.key): number.value for number in numbers_of(self.run.document)}
        after = numbers_of(this.document)
        shared = [task for task in this.document.results if task in self.run.document.results]
        for task in shared:
            if (why := why_not_same(self.run, this, task)) is not None:
                raise UsageError(f"{why}{_ADVICE}")
        paired: dict[tuple[str, str], Record] = {}
        mine, others = this.values, self.run.values
        if any(others.get(task, {}).keys() & mine.get(task, {}).keys() for task in shared):
            compared = adjust_for_several(compare_runs(self.run, this, iterations=iterations, seed=seed))
            paired = {(row["task"], key_of(row["metric"], row["filter"])): row for row in compared}
        rows = []
        for number in after:
            old = before.get((number.task, number.key))
            if old is not None and number.value is not None:
                rows.append(_row(number, old, number.value, paired.get((number.task, number.key))))
        return rows


def _row(number: Number, old: float, new: float, paired: Record | None) -> Record:
    row: Record = {"task": number.task, "metric": number.metric, "filter": number.filter}
    row |= {"baseline": old, "value": new, "difference": new - old}
    if paired is None:
        return {**row, "paired": False, "ci": None, "p": None, "p_holm": None, "test": None, "won": None, "lost": None}
    detail = {name: paired[name] for name in ("ci", "p", "p_holm", "test")}
    if paired["clusters"] is not None and paired["clusters"] < paired["groups"]:
        detail["clusters"] = paired["clusters"]
    return {**row, "paired": True, **detail, "won": len(paired["won"]), "lost": len(paired["lost"])}
