"""The results document, typed: what a run writes is checked by it, what is read is, and its JSON Schema is made of it.

A key of results is a field of `ResultsDocument`; one that holds an entry a task has the type `ByTask`. After a change
``python scripts/docs/schema.py`` rewrites ``schemas/results-1.0.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, model_validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from ttmbench import protocols
from ttmbench.errors import UsageError
from ttmbench.results.coverage import STORED_ANSWERS, STORED_SCORES, Extent
from ttmbench.results.labels import HOLDOUT, ORACLE, SIMPLE_MATCH, TTM, wrong_number
from ttmbench.results.method_record import (
    AlsoRecord,
    Control,
    Holdout,
    MethodRecord,
    OracleRecord,
    SimpleMatchRecord,
    TtmRecord,
)
from ttmbench.results.records import (
    Absent,
    Artifact,
    BaselineRecord,
    Breakdown,
    ChoiceRecord,
    Dataset,
    Digest,
    Efficiency,
    Interval,
    Key,
    Part,
    RankingRecord,
    Real,
    Samples,
    TagMeanRecord,
    TaskError,
    Truncated,
    Undecided,
    Zero,
)
from ttmbench.types import Track

_BY_TASK = "by task"
MOST_UNDECIDED = 0.5  # of a task's pairs; beyond it most comparisons are between bounds
T = TypeVar("T")
ByTask = Annotated[dict[str, T], _BY_TASK]
"""Task -> its entry."""


class ResultsDocument(Part):
    """One run of one model.

    Rates are fractions in [0, 1], scores and thresholds are logits, undefined is null. A superset of the keys of
    lm-evaluation-harness.
    """

    schema_version: Literal["1.0"]
    status: Literal["running", "done", "failed", "interrupted"] = Field(
        description="running while tasks are left: the file is rewritten after each. failed: some task failed."
    )
    task_status: dict[str, Literal["done", "failed", "pending"]] = Field(
        {}, description="Every task of the run; a failed one keeps the numbers that it had reached."
    )
    track: Track = Field(description="The track of the run's numbers that is furthest from plain scoring.")
    groups: dict[str, dict[str, Real | None]] = Field(
        {}, description="Dataset -> unweighted mean of its tasks, when all of them were run."
    )
    group_subtasks: dict[str, list[str]] = Field({}, description="Dataset -> its tasks.")
    group_notes: dict[str, list[str]] = Field(
        {}, description="Dataset -> remarks: its tasks may share images, and its standard error assumes independence."
    )
    tracks: ByTask[dict[Key, Track]] = Field(
        description="Task -> metric,filter -> track; controls and held-out groups have none. Tracks are never ranked "
        "together."
    )
    results: ByTask[dict[Key, Real | None]] = Field(
        description="Task -> metric,filter -> mean over groups (and over seeds). Filters: none (raw), simple_match, "
        "ttm, oracle, or a test-time method's name. Also metric_stderr,filter (over groups) and "
        "metric_seed_std,filter (over seeds)."
    )
    breakdowns: ByTask[dict[str, dict[str, Breakdown]]] = Field(
        {},
        description="Task -> tag -> value -> numbers of the groups that have it. Tags with one value or more than 24 "
        "are omitted, except values that means of the task file use.",
    )
    tag_means: ByTask[dict[str, TagMeanRecord]] = Field(
        {}, description="Task -> name of a mean in the task file -> a mean of means over values of tags."
    )
    ci: ByTask[dict[Key, Interval | None]] = Field(
        description="Task -> metric,filter -> 95 % interval over groups, by config.interval; null if undefined, for "
        "fewer than two groups or with --bootstrap_iters 0."
    )
    chance: ByTask[dict[str, Real | None]] = Field(
        description="Task -> metric -> expected value of i.i.d. continuous scores; of random answers for forced "
        "choices. Task -> metric,filter -> that of a test-time method, which has a chance level of its own."
    )
    ties: ByTask[dict[Key, Real | None]] = Field(
        description="Task -> metric,filter -> groups (images, for global metrics) in which the metric met an equality, "
        "a mean over seeds; null if unknown."
    )
    ttm: ByTask[TtmRecord] = Field(description="Task -> record of TTM; only tasks that it ran on.")
    simple_match: ByTask[SimpleMatchRecord] = Field(description="Task -> record of SimpleMatch's fine-tuning step.")
    oracle: ByTask[OracleRecord] = Field(
        {},
        description="Task -> record of TTM on correct matchings only: an upper bound that uses labels, never a result.",
    )
    methods: ByTask[dict[str, MethodRecord]] = Field(
        {}, description="Task -> test-time method -> its record. The method's name is the filter of its numbers."
    )
    ttm_also: ByTask[dict[str, AlsoRecord]] = Field(
        {},
        description="Task that TTM or another method trained on -> other task -> what the trained model is on it. It "
        "ranks nowhere.",
    )
    choice: ByTask[ChoiceRecord] = Field(
        {},
        description="Forced choices: task -> how they were asked. Numbers have the filter choice and a chance of "
        "their own.",
    )
    ranking: ByTask[RankingRecord] = Field(
        {}, description="Task of kind retrieval or classification -> what was ranked, and the unit of intervals."
    )
    truncated: ByTask[Truncated] = Field(
        {},
        description="Task -> captions cut at the model's context length, for models that report this (`Truncating`).",
    )
    seen_in_training: ByTask[list[str]] = Field(
        {}, description="Task -> image collections of its images that the model was trained on."
    )
    notes: ByTask[list[str]] = Field({}, description="Task -> remarks; only tasks that have some.")
    undecided: ByTask[Undecided] = Field(
        {},
        description="Models that are asked for yes or no: pairs whose score is a bound or missing (a server lists few "
        "tokens), or with P(yes) + P(no) below 0.01.",
    )
    configs: ByTask[dict[str, Any]] = Field(
        description="Task -> content of its file, with include and --task_args applied."
    )
    versions: ByTask[int] = Field(description="Task -> version of its file.")
    n_shot: ByTask[Zero] = Field({}, alias="n-shot", description="Task -> 0.")
    n_samples: ByTask[Samples] = Field(
        alias="n-samples", description="Task -> number of groups, of scored groups and of clusters."
    )
    higher_is_better: ByTask[dict[str, bool]] = Field(description="Task -> metric -> bool.")
    task_hashes: ByTask[str] = Field(
        description="Task -> sha256 over images, their reading options and captions of the scored groups, in order."
    )
    datasets: ByTask[Dataset] = Field(description="Task -> where its data came from.")
    timing: ByTask[dict[str, Real]] = Field(
        description="Task -> stage -> seconds: load, look_up (data compared with the cache), prepare, score, devices "
        "(seeds on several devices), and each filter that was run."
    )
    efficiency: ByTask[Efficiency] = Field({}, description="Task -> speed of scoring, and memory.")
    baseline: BaselineRecord | Absent = Field(None, description="Differences to another results document (--baseline).")
    errors: list[TaskError] = Field(description="Tasks and stages that failed.")
    config: dict[str, Any] = Field(description="The run's configuration.")
    run_key: Digest | None = Field(
        None,
        description="Digest of every setting that can change a number, of task files, packages and code: the same "
        "command has the same key and resumes. No signature; weights and data are not in it. null for stored scores.",
    )
    # The name that lm-evaluation-harness has for it; pydantic keeps names that begin with model_ to itself otherwise.
    model_config = ConfigDict(protected_namespaces=())
    model_name: str = Field(
        description="--name, else where the weights came from (Hub id or folder), else the name given to --model."
    )
    model_info: dict[str, Any] = Field(
        description="capabilities: protocols of the model adapter. fingerprint: what it states of itself. trained_on: "
        "image collections that it was trained on; null if unknown. finetuned: tasks, loss, hyperparameters, preset, "
        "seed and base of finetuned weights. usage: requests, tokens and cost of a model behind a server."
    )
    date: Real = Field(description="Start of the run, seconds since 1970.")
    git_hash: str | None = Field(description="Commit of the folder in which the command was run; null outside.")
    packages: dict[str, str] = Field(description="Package -> version, for packages that can change numbers.")
    code: dict[str, Digest | None] = Field(
        {},
        description="Package -> digest of its source: ttmbench, and those that the run takes its model, sources, "
        "metrics, methods and schedules from; null where the source cannot be read, and then the run is never "
        "resumed. Part of run_key; absent for stored scores.",
    )
    hardware: dict[str, Any] = Field(
        description="platform, machine, cpus, accelerator, matmul_precision, torch_threads, and cpu_capability: the "
        "instructions that torch uses (AVX2, AVX512); the last two are null without torch."
    )
    total_evaluation_time_seconds: Real = Field(description="Seconds so far.")
    command: str = Field(description="Command line; empty from Python without one.")
    artifacts: dict[str, Artifact] = Field(description="Name -> file next to the document.")

    @classmethod
    def of(cls, document: ResultsDocument | Mapping[str, Any]) -> ResultsDocument:
        """A document that a program holds as a mapping, checked; of tuples it makes lists."""
        return document if isinstance(document, cls) else cls.model_validate(document, strict=False)

    def to_dict(self) -> dict[str, Any]:
        """The document as JSON has it; keys of a newer minor version are not in it."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @property
    def started(self) -> str:
        """When the run began, ISO 8601 in UTC."""
        return datetime.fromtimestamp(self.date, UTC).isoformat(timespec="seconds")

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What the model's adapter states of it; nothing of stored scores."""
        return mapping(self.model_info.get("fingerprint"))

    @property
    def finetuned(self) -> Mapping[str, Any]:
        """What is stated of the finetuning of the model; nothing of another model."""
        return mapping(self.model_info.get("finetuned"))

    def extent(self, task: str) -> Extent:
        """How many groups of a task were scored, of how many.

        ``n-samples`` tells where the task file states its size. Where it does not, both counts of ``n-samples`` are
        what was scored: then a run with a limit that was reached, or with ``samples``, is one of a part of unknown
        size.
        """
        counts, coverage = self.n_samples[task], self.datasets[task].coverage
        scored, total = counts.effective, counts.original
        if coverage is not None and scored == coverage.here:
            return Extent(scored, coverage.rows, False)
        if scored != total:
            return Extent(scored, total, scored < total)
        limit = self.config.get("limit")
        cut = (type(limit) is int and scored >= limit) or self.config.get("samples") is not None
        states_size = mapping(self.configs[task].get("group")).get("n_groups") is not None
        # Of stored scores the limit itself may be written down as the task's size.
        if cut and (self.source_kind(task) == STORED_SCORES or not states_size):
            return Extent(scored, None, True)
        return Extent(scored, total, False)

    def source_kind(self, task: str) -> str | None:
        """The kind of source that a task was read from: ``folder``, ``stored_features``, ..."""
        kind = self.datasets[task].source.get("kind") if task in self.datasets else None
        return kind if isinstance(kind, str) else None

    def is_stored(self, task: str) -> bool:
        """Whether a task's numbers are of a file of scores, ranks or answers, and not of a run on the data."""
        return self.source_kind(task) in (STORED_SCORES, STORED_ANSWERS)

    def training(
        self, task: str, filter_: str
    ) -> TtmRecord | SimpleMatchRecord | OracleRecord | Control | Holdout | MethodRecord | None:
        """What is recorded of the method that a filter stands for; None for the model as it is."""
        if filter_ in self.methods.get(task, {}):
            return self.methods[task][filter_]
        if filter_ in (SIMPLE_MATCH, ORACLE):
            return (self.simple_match if filter_ == SIMPLE_MATCH else self.oracle).get(task)
        of_ttm = self.ttm.get(task)
        if of_ttm is None or filter_ == TTM:
            return of_ttm
        if filter_ == HOLDOUT:
            return of_ttm.holdout
        return next((control for name, control in of_ttm.controls.items() if name == filter_), None)

    def undecided_tasks(self) -> dict[str, str]:
        """Tasks of which most pairs have a bound or nothing for a score -> how many, and what helps, in a sentence."""
        return {
            task: f"{record.pairs} of {record.of} pairs; "
            + protocols.UndecidedPairs(record.pairs, record.of, record.mass, record.instead).remedy
            for task, record in self.undecided.items()
            if record.pairs > MOST_UNDECIDED * record.of
        }

    def check_baseline(self) -> None:
        """UsageError if the run was to be compared with something that cannot be."""
        if self.baseline is not None and self.baseline.refused:
            raise UsageError(self.baseline.refused)

    @model_validator(mode="after")
    def _is_consistent(self) -> ResultsDocument:
        """What a JSON Schema cannot say: no task is half there, and no number is one that its metric cannot have."""
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        for key in _WHOLE:
            field = next(field for field, about in type(self).model_fields.items() if key in (field, about.alias))
            for task in self.results:
                if task not in getattr(self, field):
                    yield f"'{key}' lacks task '{task:.60}'"
        for task, numbers in self.results.items():
            for key, value in numbers.items():
                wrong = wrong_number(key, value)
                if wrong:
                    yield f"{value!r:.40} for '{key:.80}' of task '{task:.80}', {wrong}"
        for task, version in self.versions.items():
            counts = self.n_samples[task] if task in self.n_samples else Samples(original=0, effective=0)
            for whole in (version, counts.original, counts.effective):
                if not 0 <= whole < 2**53:
                    yield f"{whole!r:.40} of task '{task:.80}', which is not a whole number from 0"
        try:
            datetime.fromtimestamp(self.date, UTC)
        except (ValueError, OverflowError, OSError):
            yield f"'date' is {self.date!r:.40}, which is not a time"


_WHOLE = (
    *("tracks", "ci", "chance", "ties", "configs", "versions", "n-samples", "higher_is_better", "task_hashes"),
    "datasets",
)
"""A task in ``results`` has to be in each of these, or its numbers cannot be identified or explained."""


def mapping(value: object) -> Mapping[str, Any]:
    """A value of which the schema does not say what it is, if it is an object; else nothing."""
    return value if isinstance(value, Mapping) else {}


def keys_by_task() -> list[str]:
    """The keys of a results document that hold one entry a task, in its order."""
    fields = ResultsDocument.model_fields.items()
    return [field.alias or name for name, field in fields if _BY_TASK in field.metadata]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a results document, as it ships."""
    made = ResultsDocument.model_json_schema(schema_generator=_Schema)
    definitions = made.pop("$defs")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "ttmbench-results-1.0",
        "title": "ttmbench results",
        **_plain(made),
        "$defs": {name: _plain(definition) for name, definition in definitions.items()},
    }


class _Schema(GenerateJsonSchema):
    """pydantic's, but keys that do not fit a mapping's pattern are refused and not passed over."""

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        """A mapping: what its keys and its values are."""
        keys = self.generate_inner(schema["keys_schema"])
        values = self.generate_inner(schema["values_schema"])
        keys = {key: value for key, value in keys.items() if key != "type"}
        return {
            "type": "object",
            **({"propertyNames": keys} if keys else {}),
            **({"additionalProperties": values} if values else {}),
        }


def _plain(value: Any, named: bool = False) -> Any:
    """A schema without the names and defaults of Python's side; ``named``: its keys are names of keys."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if named:
        return {key: _plain(item) for key, item in value.items()}
    schema = {key: item for key, item in value.items() if key not in ("title", "default")}
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    return {key: _plain(item, named=key == "properties") for key, item in schema.items()}
