"""Metrics of models that were adapted to one task and measured on another, which no table ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import RAW, TTM, chance_in, key_of, numbers_in, seed_std_key
from ttmbench.results.method_record import AlsoRecord, Gain, MethodRecord, TtmRecord
from ttmbench.results.models import stated_model

TITLE = "Adapted to one task, measured on another: what adaptation costs elsewhere, in no ranking"
MATCHES = ("group_match", "global_assignment_accuracy")


@dataclass(frozen=True)
class Transfer:
    """One metric of a task, measured with a model that TTM or another method trained on one. Rates are fractions."""

    adapted_on: str  # the task that the model was adapted to
    measured_on: str  # the task that the metric is of; the same one for what adaptation does to its own task
    metric: str  # its name
    raw: float | None  # of the model as it was
    value: float | None  # of the adapted model, the mean over seeds
    seed_std: float | None  # over seeds
    seeds: int  # how many
    difference: float | None  # ``value - raw``
    ci_low: float | None  # lower end of the difference's 95 % interval over groups
    ci_high: float | None  # its upper end
    seed_ci_low: float | None  # lower end of its 95 % interval over seeds
    seed_ci_high: float | None  # its upper end
    chance: float | None  # of random scores
    groups: int  # that were scored
    groups_of_task: int  # that the task has
    shown: bool  # whether tables with room for one metric of the task show this one
    model: str = ""  # as the run calls it
    fingerprint: str | None = None  # of the model
    date: float = 0.0  # of the run, seconds since 1970
    file: str = ""  # the results document
    method: str = TTM  # that trained the model

    @property
    def adapted_to(self) -> str:
        """The task that the model was trained on, with the method if it is not TTM."""
        return self.adapted_on if self.method == TTM else f"{self.adapted_on} by {self.method}"

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the difference's interval over groups."""
        return None if self.ci_low is None or self.ci_high is None else (self.ci_low, self.ci_high)

    @property
    def limited(self) -> bool:
        """Whether it is of a part of the task."""
        return self.groups < self.groups_of_task

    def row(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self)


def transfers_of(document: ResultsDocument, file: str = "") -> list[Transfer]:
    """Metrics of adapted models on their own task, then on other tasks (``--ttm_also``), by the task adapted to."""
    transfers: list[Transfer] = []
    for task, others in document.ttm_also.items():
        trained: dict[str, TtmRecord | MethodRecord] = {TTM: document.ttm[task]} if task in document.ttm else {}
        for method, adapted in (trained | document.methods.get(task, {})).items():
            gains = adapted.differences
            if gains is not None and task in document.results:
                transfers += _rows(
                    document, task, task, _of_itself(document, task), (method, adapted.seeds, gains), file
                )
            for other, record in others.items():
                of_method = record if method == TTM else (record.methods or {}).get(method)
                if of_method is not None:
                    measured = method, of_method.seeds, of_method.differences
                    transfers += _rows(document, task, other, record, measured, file)
    return transfers


def _of_itself(document: ResultsDocument, task: str) -> AlsoRecord:
    """A task as if it were another one."""
    return AlsoRecord.model_construct(
        seeds=[],
        results=document.results[task],
        chance=document.chance[task],
        differences={},
        matching="global" if document.configs[task].get("matching") == "global" else "group",
        n_samples=document.n_samples[task],
        ci=document.ci[task],
        ties=document.ties[task],
        version=document.versions[task],
        fingerprint=document.task_hashes[task],
        shape=document.datasets[task].shape,
        seconds=0.0,
    )


def shown_metrics(metrics: Collection[str], matching: str) -> list[str]:
    """The metrics of a task that a table with room for few shows: the match, else all.

    >>> shown_metrics(["group_score", "group_match"], "group"), shown_metrics(["recall_at_1", "recall_at_5"], "group")
    (['group_match'], ['recall_at_1', 'recall_at_5'])
    """
    match = MATCHES[matching == "global"]
    return [match] if match in metrics else list(metrics)


def _rows(
    document: ResultsDocument,
    task: str,
    other: str,
    record: AlsoRecord,
    measured: tuple[str, Sequence[int], Mapping[str, Gain]],
    file: str,
) -> Iterator[Transfer]:
    """The metrics of a task; ``measured`` are the method, its seeds and its differences."""
    results, (method, seeds, gains) = record.results, measured
    names = [metric for metric, name in numbers_in(results) if name == RAW]
    shown, fingerprint = shown_metrics(names, record.matching), stated_model(document).fingerprint
    for metric in (metric for metric in names if key_of(metric, method) in results):
        gain = gains.get(metric)
        low, high = (gain and gain.ci) or (None, None)
        seed_low, seed_high = (gain and gain.seed_ci) or (None, None)
        yield Transfer(
            adapted_on=task,
            measured_on=other,
            metric=metric,
            raw=results[key_of(metric, RAW)],
            value=results[key_of(metric, method)],
            seed_std=results.get(seed_std_key(metric, method)),
            seeds=len(seeds),
            difference=None if gain is None else gain.value,
            ci_low=low,
            ci_high=high,
            seed_ci_low=seed_low,
            seed_ci_high=seed_high,
            chance=chance_in(record.chance, metric, method),
            groups=record.n_samples.effective,
            groups_of_task=record.n_samples.original,
            shown=metric in shown,
            model=document.model_name,
            fingerprint=fingerprint,
            date=float(document.date),
            file=file,
            method=method,
        )
