"""What a finished run gives to a program: the results document as a mapping, score arrays, and numbers as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ttmbench._annotations import pd
from ttmbench.evaluator.single_groups import groups_by_task
from ttmbench.evaluator.task_result import Scored, TaskResult
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import numbers_elsewhere, numbers_of, to_frame
from ttmbench.results.stored_runs import TaskGroups, Values, stored_groups
from ttmbench.types import Scores

_SHOWN_TASKS = 5
_COLUMNS = (("raw", "group_score,none"), ("SimpleMatch", "group_match,none"), ("TTM", "group_match,ttm"))
_GLOBAL = (("SimpleMatch", "global_assignment_accuracy,none"), ("TTM", "global_assignment_accuracy,ttm"))


@dataclass(frozen=True, eq=False, repr=False)
class EvalResults(Mapping[str, Any]):
    """A results document as a mapping, and what a program needs beside it.

    Attributes:
        typed: the document.
        tasks: task -> its result, of tasks that this program scored or whose scores it read.
        path: the results file, if there is one.
        earlier: task -> single groups, of tasks that an earlier run of the same command had done.
        address: of the results file, if the run wrote to an address (``s3://...``); then there is no ``path``.
        setting: what distinguishes it from others that were read with it: in a sweep the setting's name, else the
            arguments that differ.
    """

    typed: ResultsDocument
    tasks: Mapping[str, TaskResult] = field(default_factory=dict)
    path: Path | None = None
    earlier: Mapping[str, TaskGroups] = field(default_factory=dict)
    address: str | None = None
    setting: str = ""

    def __getitem__(self, key: str) -> Any:
        return self.document[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)

    def __repr__(self) -> str:
        """Model, state and the numbers of the first tasks, in a few lines."""
        tasks = list(self.results)
        lines = [f"EvalResults: {self.model_name}, {self.document['status']}, {_count(len(tasks), 'task')}"]
        lines += [f"  {task}: {self._shown(task)}" for task in tasks[:_SHOWN_TASKS]]
        if len(tasks) > _SHOWN_TASKS:
            lines.append(f"  and {_count(len(tasks) - _SHOWN_TASKS, 'task')} more")
        lines += [f"  failed: {error['task'] or 'the run'}: {error['message']:.100}" for error in self["errors"][:3]]
        return "\n".join(lines)

    def _shown(self, task: str) -> str:
        """One line of a task's numbers, in percent."""
        numbers = self.results[task]
        wanted = _GLOBAL if self.document["configs"][task].get("matching") == "global" else _COLUMNS
        keys = [(name, key) for name, key in wanted if numbers.get(key) is not None]
        keys = keys or [(key, key) for key in self.document["ci"][task] if numbers.get(key) is not None][:3]
        groups = _count(self.document["n-samples"][task]["effective"], "group")
        if covered := (self.document["datasets"].get(task) or {}).get("coverage"):
            groups = f"{self.document['n-samples'][task]['effective']} of {covered['rows']} groups"
        shown = [f"{name} {100 * (numbers[key] or 0):.2f}" for name, key in keys]
        return f"{groups}, percent: {', '.join(shown) or 'nothing is defined'}"

    @cached_property
    def document(self) -> dict[str, Any]:
        """Exactly what the results file holds."""
        return self.typed.to_dict()

    @property
    def model_name(self) -> str:
        """What results call the model."""
        return str(self.document["model_name"])

    @cached_property
    def group_values(self) -> dict[str, Values]:
        """Task -> filter -> metric -> group id -> value, a mean over seeds: what `ttmbench.compare` pairs.

        Of results that were read from a file they are those of the samples beside it, tasks without samples left out.

        Raises:
            DataError: samples are absent or damaged.
        """
        return {task: found.values for task, found in self.task_groups.items()}

    @cached_property
    def task_groups(self) -> dict[str, TaskGroups]:
        """Task -> values and clusters of its groups; as `group_values`, and with the same errors."""
        if self.tasks or self.earlier or self.path is None:
            return {**self.earlier, **groups_by_task(self.tasks)}
        return stored_groups(self.path.parent, self.typed)

    @property
    def scores(self) -> dict[str, dict[str, list[Scores]]]:
        """Task -> filter -> `Scores`, one per seed, of tasks that this program scored or whose scores it read.

        They are float32, of stored scores float64 where these are. There are none of results that were read back, of
        tasks that an earlier run of the same command had done; those of ranks and of forced choices are empty.
        """
        return {name: result.scores if isinstance(result, Scored) else {} for name, result in self.tasks.items()}

    @property
    def results(self) -> dict[str, dict[str, float | None]]:
        """Task -> ``metric,filter`` -> fraction."""
        return self.document["results"]

    @property
    def failed(self) -> bool:
        """Whether a task failed."""
        return bool(self.document["errors"])

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        return self.document

    def to_frame(self) -> pd.DataFrame:
        """Every number as a row of a table.

        Returns:
            One row a task, metric and filter, and behind these what adapted models are on other tasks (task ``adapted
            to@measured on``, and ``adapted_to``): ``model``, ``task``, ``metric``, ``filter``, ``method`` (in words),
            ``track``, ``setting``, ``value`` (a fraction) and everything that belongs to it: interval, chance, ties,
            seeds, groups.

        Raises:
            DataError: the document contradicts itself.
        """
        file = str(self.path or "")
        numbers = [*numbers_of(self.typed, file), *numbers_elsewhere(self.typed, file)]
        return to_frame(replace(number, setting=self.setting) for number in numbers)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
