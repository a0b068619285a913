"""The results document that a submission should be, made by the code of a run from its command, data and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ttmbench._util.arrays import read_arrays
from ttmbench._util.files import file_digest
from ttmbench._util.text import read_json_lines
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.classes import load_classes
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.evaluator.plan import Run, TaskPlan, plan_task
from ttmbench.evaluator.ranking_task import RetrievalPool, describe_classes
from ttmbench.evaluator.record import RunRecord
from ttmbench.evaluator.run import write_artifacts
from ttmbench.evaluator.run_key import RunKey, kinds_of
from ttmbench.evaluator.score_task import ask_task, load_data
from ttmbench.evaluator.settings import datasets_of
from ttmbench.evaluator.task_result import Data, Ranked, Scored, TaskResult, TransferResult
from ttmbench.evaluator.transfer_eval import gains_of, with_adapted_scores
from ttmbench.plugins.registry import Registry, metric_for
from ttmbench.protocols import ChoiceQuestion, ChoiceStyle
from ttmbench.reproduce.submission.files import Files, MissingError, compare_files
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.reproduce.submission.method_columns import method_columns, unaudited
from ttmbench.reproduce.submission.replay import check_pairs, equal_seeds, replayed_columns
from ttmbench.results.clusters import Clusters, clusters_of
from ttmbench.results.document import ResultsDocument
from ttmbench.results.files import RunFiles
from ttmbench.results.labels import RAW, SIMPLE_MATCH, TTM
from ttmbench.results.ranks import CLASS, I2T, T2I
from ttmbench.results.ranks_file import read_saved
from ttmbench.results.records import RECOMPUTED
from ttmbench.results.score_lines import StoredScores
from ttmbench.results.scores_file import read_scores
from ttmbench.results.summary import MethodScores
from ttmbench.results.tag_means import breakdowns
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.scoring.fingerprint import Fingerprint, distinct_captions
from ttmbench.types import Group, MetricSpec

_PARTLY = ("truncated", "undecided")  # recorded, and made of parts of which some fields are recomputed
_OF_THE_PLACE = ("folder", "passed_over")  # of a source: where this machine has the data


@dataclass(frozen=True)
class Submission:
    """A submission and what it is checked with.

    Attributes:
        document: of results.
        config: the run, from its command.
        registry: models, tasks and metrics.
        tasks: those that the command names.
        settings: name of a task -> its test-time settings.
        also: other tasks that adapted models are measured on.
        key: of the command, from the packages and the code that the document states.
        files: beside the document.
        findings: takes what is wrong.
        with_data: read the tasks' data, where these are on this machine.
        data_dir: folder of data files.
    """

    document: ResultsDocument
    config: RunConfig
    registry: Registry
    tasks: Mapping[str, TaskFile]
    settings: Mapping[str, TTMConfig]
    also: Mapping[str, TaskFile]
    key: RunKey
    files: Files
    findings: Findings
    with_data: bool = True
    data_dir: str | None = None
    _data: dict[str, Data | None] = field(default_factory=dict)

    def expected(self) -> ResultsDocument:
        """The document that the command, the data and the stored scores give; recorded and free values as stated."""
        document, config = self.document, self.config
        record = RunRecord(
            config.model_name,
            config.model_dump(mode="json"),
            (),
            datetime.fromtimestamp(document.date).astimezone(),
            list(self.tasks),
            datasets_of(self.registry, self.tasks),
            self.key,
        )
        record.model_info = document.model_info
        for name, task in self.tasks.items():
            if name not in document.results:
                self.findings.refuse(f"results.{name}", "is missing; the command names it")
                continue
            try:
                record.results[name] = self._result(task).summarised(self._run.resampling)
            except MissingError as error:
                self.findings.leave_open(f"results.{name}", str(error))
            except (TtmbenchError, ValueError) as error:
                self.findings.refuse(f"results.{name}", str(error))
        stated = document.to_dict()
        # A task that cannot be computed has its reason already.
        record.take_over(stated, [name for name in self.tasks if name not in record.results])
        made = record.document("done").to_dict()
        for name in record.results:
            self._take_over(name, made, stated)
        for name, about in ResultsDocument.model_fields.items():
            key = about.alias or name
            if key == "command" or (RECOMPUTED not in about.metadata and key not in _PARTLY):
                made.pop(key, None)
                made |= {key: stated[key]} if key in stated else {}
        made["artifacts"] = self._artifacts(record)
        return ResultsDocument.of(made)

    def _take_over(self, name: str, made: dict[str, dict[str, object]], stated: dict[str, dict[str, object]]) -> None:
        """Takes what cannot be computed here, which was reported, as the document states it."""
        by_data = ("breakdowns", "tag_means", "task_hashes", "datasets")
        for key in by_data if self.data(self.tasks[name]) is None else ():
            made.get(key, {}).pop(name, None)
            if name in stated.get(key, {}):
                made.setdefault(key, {})[name] = stated[key][name]
        for other in self.document.ttm_also.get(name, {}):
            of_task = made.setdefault("ttm_also", {}).setdefault(name, {})
            assert isinstance(of_task, dict), "JSON as the document has it"
            if other in self.also and other not in of_task:
                of_task[other] = self.document.ttm_also[name][other].model_dump(by_alias=True, exclude_unset=True)

    @property
    def _run(self) -> Run:
        """The command on this machine, without its model."""
        here = self.config.model_copy(update={"offline": True, "data_dir": self.data_dir, "save_adapted": None})
        return Run(self.registry, here, Capabilities(None))

    def data(self, task: TaskFile) -> Data | None:
        """A task's data, read without the network; None if they are not on this machine, which is reported."""
        name = task.spec.task
        if name not in self._data:
            self._data[name] = None
            if not self.with_data:
                self.findings.notes.append(f"{name}: its data were not read, so ids, tags and digests are not compared")
                return None
            try:
                loaded = load_data(self.registry, self._run.config, task, None)
                known = Fingerprint(loaded.groups, None)
                known.add_remaining()
            except TtmbenchError as error:
                words = f"its data are not on this machine, so ids, tags and digests are not compared ({error!s:.200})"
                self.findings.leave_open(f"datasets.{name}", words)
            else:
                stated = self.document.datasets.get(name)
                source = _source(loaded.source, {} if stated is None else stated.source, task.spec)
                clusters = clusters_of(loaded.groups, known.of)
                self._data[name] = Data(loaded.groups, source, known.hexdigest(), clusters)
        return self._data[name]

    def _data_or_ids(self, task: TaskFile, ids: Sequence[str], clusters: Clusters | None) -> Data:
        """The data, which have these groups; where they are not here, groups of which only the ids are known."""
        known, name = self.data(task), task.spec.task
        if known is not None:
            if [group.group_id for group in known.groups] != list(ids):
                raise DataError("the groups of its scores are not those of the task's data, in their order")
            return known
        groups = [Group(group, (), (), {}) for group in ids]
        counts = self.document.n_samples.get(name)
        if clusters is None and counts is not None and counts.clusters is not None:
            clusters = Clusters(np.arange(len(ids)), np.arange(len(ids) * task.spec.shape.images).reshape(len(ids), -1))
        stated = self.document.datasets.get(name)
        source = {} if stated is None or stated.coverage is None else {"coverage": stated.coverage.model_dump()}
        return Data(groups, source, self.document.task_hashes.get(name, ""), clusters)

    def _result(self, task: TaskFile) -> TaskResult:
        can = set(self.document.model_info.get("capabilities") or ())
        if task.spec.kind != "groups":
            return self._ranked(task)
        if "ChoiceScorer" in can and not can & {"DualEncoder", "PairScorer"}:
            return self._answered(task)
        return self._scored(task, can)

    def _metrics(self, spec: TaskSpec) -> list[MetricSpec]:
        return [metric_for(self.registry.metric(name), spec.shape) for name in spec.metrics]

    def _stored(self, kind: str, task: TaskFile, adapted_on: str | None = None) -> StoredScores:
        path = self.files.path(kind, adapted_on or task.spec.task, task.spec.task if adapted_on else None)
        stored = read_scores(path, task.spec.shape)
        check_pairs(stored)
        return stored

    def _scored(self, task: TaskFile, can: set[str]) -> TaskResult:
        spec, document, config = task.spec, self.document, self.config
        name, metrics, stored = spec.task, self._metrics(spec), self._stored("scores", task)
        data = self._data_or_ids(task, stored.group_ids, stored.clusters)
        raw = MethodScores(RAW, stored.scores[RAW])
        result = Scored(spec=spec, metrics=metrics, data=data, columns=[raw])
        self.findings.raw_scores[name] = result.raw.groups.astype(np.float64).ravel()
        loss = can >= {"DualEncoder", "Trainable"} or ("DualEncoder" not in can and "PairTrainable" in can)
        if config.own_columns and loss and spec.shape.true_captions == 1:
            every = spec.is_global or any(metric.scope == "global" for metric in metrics)
            plan, settings = TaskPlan(task, metrics, every, "prepared", True, True, None, None), self.settings[name]
            columns = [raw, *replayed_columns(document, result, plan, self._run, settings, stored)]
            for filter_ in equal_seeds(document, plan, settings, columns):
                self.findings.refuse(f"results.{name}", f"two seeds of {filter_} have equal scores, and both trained")
            for column in (column for column in columns if column.name == TTM):
                self._complete(column, result)
            result = replace(result, columns=columns)
        methods = list(method_columns(document, result, self._run, stored, can, self.settings[name]))
        for method in unaudited(methods, config, self.registry):
            key = f"methods.{name}.{method}.audit_labels"
            self.findings.refuse(key, "is missing; submit test-time numbers with --audit_labels")
        columns = [*result.columns, *methods]
        measured = {column.name: column for column in columns if column.name in self._run.left_models}
        measured.pop(SIMPLE_MATCH, None)
        for column in methods if set(self.also) - {name} else ():
            if column.name in measured:
                column.record["differences"] = gains_of(result, column.scores, config)
        elsewhere = self._elsewhere(name, list(measured)) if measured else {}
        result = replace(result, columns=columns, elsewhere=elsewhere)
        surplus = set(stored.scores) - {column.name for column in result.columns}
        if surplus:
            raise DataError(f"its scores have filters {', '.join(sorted(surplus))}, for which the command does not ask")
        cut, left = document.truncated.get(name), document.undecided.get(name)
        truncated = None if cut is None else cut.model_dump()
        if truncated is not None and self.data(task) is not None:
            truncated["of"] = len(distinct_captions(data.groups))
        return replace(
            result,
            truncated=truncated,
            breakdowns=breakdowns(data.groups, result.scores, metrics, result.subsets, spec.means),
            from_store=self._from_store(name),
            undecided=None if left is None else left.model_dump(),
        )

    def _from_store(self, task: str) -> dict[str, object] | None:
        stored = self.document.datasets[task].from_store
        return None if stored is None else stored.model_dump(exclude_unset=True)

    def _complete(self, column: MethodScores, scored: Scored) -> None:
        """Adds what a record of TTM has beside its iterations: the audit, and differences next to other tasks'."""
        config, task = self.config, scored.spec.task
        if config.audit_labels:
            seeds = [line["seed"] for line in column.record["iterations"]]
            iterations = max(map(seeds.count, set(seeds)), default=self.settings[task].iterations)
            column.record["audit_labels"] = {"passed": True, "seeds": config.run_seeds, "iterations": iterations}
        else:
            self.findings.refuse(f"ttm.{task}.audit_labels", "is missing; submit test-time numbers with --audit_labels")
        if set(self.also) - {task}:
            column.record["differences"] = gains_of(scored, column.scores, config)

    def _elsewhere(self, adapted_on: str, methods: Sequence[str]) -> dict[str, TransferResult]:
        """The other tasks that the models which methods trained were measured on, as far as their scores are here."""
        results, config = {}, self.config
        for name, task in ((name, task) for name, task in self.also.items() if name != adapted_on):
            spec, stated = task.spec, self.document.ttm_also.get(adapted_on, {}).get(name)
            if stated is None:
                continue  # which is a difference to the command
            if spec.kind != "groups":
                self.findings.leave_open(f"ttm_also.{adapted_on}.{name}", "no scores are stored of a task that ranks")
                continue
            stored, metrics = self._stored("also_scores", task, adapted_on), self._metrics(spec)
            data = self._data_or_ids(task, stored.group_ids, stored.clusters)
            adapted = {method: stored.scores.get(method, []) for method in methods}
            for count in map(len, adapted.values()):
                if count != len(config.run_seeds):
                    raise DataError(f"scores of {name} are of {count} seeds, the command has {len(config.run_seeds)}")
            columns = [MethodScores(RAW, stored.scores[RAW])]
            raw = Scored(spec=spec, metrics=metrics, data=data, columns=columns).summarised(self._run.resampling)
            outcome, gains = with_adapted_scores(raw, adapted, config)
            results[name] = TransferResult(outcome, dict.fromkeys(methods, config.run_seeds), gains, stated.seconds)
        return results

    def _ranked(self, task: TaskFile) -> TaskResult:
        spec, config, document = task.spec, self.config, self.document
        path = self.files.path("ranks", spec.task)
        stored = read_saved(path, read_arrays(path))
        if stored is None:
            raise DataError(f"{path.name} is not a file of ranks")
        about: dict[str, object] = {}
        if spec.kind == "classification":
            about["classes"] = describe_classes(load_classes(spec))
        record = document.ranking.get(spec.task)
        if config.rerank and record is not None and record.rerank is not None:
            first = {name: config.rerank.get(name) for name in ("model", "k")}
            about["rerank"] = {**first, "fingerprint": record.rerank.fingerprint}
        data, ranks, of_query = self.data(task), stored.ranks, stored.of_query
        shape = len(ranks[next(iter(ranks))]), ranks[next(iter(ranks))].candidates
        if data is None:
            data = Data([], {}, document.task_hashes[spec.task])
        else:
            pool = RetrievalPool(data.groups)
            every, true = np.arange(pool.n_images), np.bincount(pool.owner)
            ones, owner = np.ones_like, pool.owner
            wanted = {I2T: (every, true, pool.n_captions), T2I: (owner, ones(owner), pool.n_images)}
            if spec.kind == "classification":
                wanted = {CLASS: (every, ones(every), len(load_classes(spec).names))}
            alike = [
                np.array_equal(of_query[scope], of) and np.array_equal(ranks[scope].true, true)
                for scope, (of, true, candidates) in wanted.items()
                if scope in ranks and ranks[scope].candidates == candidates
            ]
            if len(alike) < len(wanted) or len(ranks) > len(wanted) or not all(alike):
                raise DataError("queries and candidates of its ranks are not those of the task's data")
        return Ranked(
            spec=spec,
            metrics=[self.registry.metric(name) for name in spec.metrics],
            data=data,
            ranks=ranks,
            of_query=of_query,
            pool=shape,
            about=about,
            from_store=self._from_store(spec.task),
        )

    def _answered(self, task: TaskFile) -> TaskResult:
        """Asks every question again; the answers are those of the samples."""
        spec, record = task.spec, self.document.choice.get(task.spec.task)
        path = self.files.path("samples", spec.task)
        if record is None:
            raise DataError(f"choice.{spec.task} is missing; it says how forced choices were asked")
        if self.data(task) is None:
            raise DataError("its data are not on this machine, so no question can be asked again")
        texts: list[str | None] = []
        for _, line in read_json_lines(path):
            for answer in line["answers"] if isinstance(line.get("answers"), list) else ():
                if not isinstance(answer, dict) or not isinstance(answer.get("answer", 0), str | None):
                    raise DataError(f"{path.name} has an answer that is not a text")
                texts.append(answer["answer"])
        style = ChoiceStyle(record.order or "random", bool(record.side_by_side))
        run = replace(self._run, capabilities=Capabilities(_Answers(style, texts)))
        return ask_task(plan_task(run, task), run)

    def _artifacts(self, record: RunRecord) -> dict[str, object]:
        """The files that the run writes: those beside the document have the same content."""
        artifacts: dict[str, object] = {}
        with TemporaryDirectory() as folder:
            made = RunFiles(Path(folder) / self.files.document.name, self.files.beside)
            for result in record.results.values():
                write_artifacts(made, self.config, result)
            for name, about in made.artifacts.items():
                path, stated = self.files.folder / name, self.document.artifacts.get(name)
                why = self.files.why_not(name)
                if why is not None:
                    self.findings.refuse(f"artifacts.{name}", why)
                    artifacts |= {} if stated is None else {name: stated.model_dump(exclude_unset=True)}
                    continue
                artifacts[name] = {**about, "sha256": file_digest(path), "bytes": path.stat().st_size}
                known = about["kind"] != "samples" or self.data(self.tasks[about["task"]]) is not None
                compare_files(path, Path(folder) / name if known else path, self.findings)
        for name, file in self.document.artifacts.items():  # of tasks that could not be computed
            if file.task in self.tasks and file.task not in record.results:
                artifacts[name] = file.model_dump(exclude_unset=True)
        return artifacts


class _Answers:
    """A model that gives the answers of a file, in the order in which it is asked."""

    def __init__(self, style: ChoiceStyle, answers: Sequence[str | None]) -> None:
        self.choice_style, self._answers, self._at = style, answers, 0

    def answer(self, questions: Sequence[ChoiceQuestion]) -> Sequence[str | None]:
        """The next answers."""
        start, self._at = self._at, self._at + len(questions)
        return self._answers[start : self._at]


def _source(here: dict[str, object], stated: Mapping[str, object], spec: TaskSpec) -> dict[str, object]:
    """Where the data came from: what depends on the machine is as the document states it."""
    if stated.get("kind") != here.get("kind") and stated.get("kind") in list(kinds_of(spec.source)):
        return {**stated, **({"coverage": here["coverage"]} if "coverage" in here else {})}
    local_fields = {key: stated[key] for key in _OF_THE_PLACE if key in stated}
    return {**{key: value for key, value in here.items() if key not in _OF_THE_PLACE}, **local_fields}
