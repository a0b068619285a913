"""The results document, typed: what a run writes is checked by it, what is read is, and its JSON Schema is made of it.

A key of results is a field of `ResultsDocument`; one that holds an entry a task has the type `ByTask`. After a change
``make schema`` writes ``schemas/results-1.0.json`` anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, SkipJsonSchema

from ttmbench.results.samples import wrong_number
from ttmbench.types import Track

_DIGITS = r"^[0-9a-f]{64}$"
_KEY = r"^[A-Za-z0-9_]+,[a-z_]+$"


def _never(value: None) -> None:
    raise ValueError("is left out, not null, where there is none")


def _yes(value: bool) -> bool:
    if not value:
        raise ValueError("is true where it stands")
    return value


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError("names something twice")
    return values


# A whole number stays one: JSON has but one kind, and files say 0 where 0 was meant.
Number = Annotated[int | float, WithJsonSchema({"type": "number"})]
Positive = Annotated[int | float, Field(gt=0), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})]
Fraction = Annotated[int | float, Field(ge=0, le=1), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]
Share = Annotated[
    int | float,
    Field(gt=0, lt=1),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
]
Interval = Annotated[list[Number], Field(min_length=2, max_length=2)]
Digest = Annotated[str, Field(pattern=_DIGITS)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Seeds = Annotated[list[int], Field(min_length=1)]
Key = Annotated[str, Field(pattern=_KEY)]
Yes = Annotated[bool, AfterValidator(_yes), WithJsonSchema({"const": True})]
Zero = Annotated[int, Field(ge=0, le=0), WithJsonSchema({"const": 0})]
Absent = Annotated[SkipJsonSchema[None], AfterValidator(_never)]
"""Of a key that may be left out: its default, which no document states."""

_BY_TASK = "by task"
T = TypeVar("T")
ByTask = Annotated[dict[str, T], _BY_TASK]
"""Task -> its entry."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class Iteration(_Part):
    """An iteration of TTM."""

    seed: int
    iteration: AtLeastOne
    threshold: Number
    selected: Count
    candidates: AtLeastOne
    coverage: Fraction
    tied: Count
    pseudo_label_accuracy: Fraction | None = Field(description="Reads labels: a diagnostic that steered nothing.")
    loss: list[Number] = Field(description="Mean of each epoch.")
    learning_rate: Number
    metrics: dict[str, Number | None]
    seconds: Number


class LearningRate(_Part):
    """The learning rate of a run of TTM, and who stated it."""

    value: Positive
    source: Literal["stated", "default"]
    note: str | None


class Control(_Part):
    """TTM with other pseudo-labels."""

    seeds: Seeds
    iterations: list[Iteration]


class Holdout(_Part):
    """TTM on some groups, scored on the others."""

    share: Share = Field(description="Of the groups that are held out.")
    adapted_groups: Annotated[list[Count], Field(min_length=1)]
    scored_groups: Annotated[list[Count], Field(min_length=1)]
    seeds: Seeds
    iterations: list[Iteration]


class LabelAudit(_Part):
    """A second run of every seed with permuted captions."""

    passed: Yes
    seeds: Seeds
    iterations: AtLeastOne


class TtmRecord(_Part):
    """How TTM went on a task."""

    hyperparameters: dict[str, Any]
    learning_rate: LearningRate | Absent = Field(
        None, description="The learning rate used: stated by user, preset, task or model, or the package's default."
    )
    preset: Literal["auto", "paper"]
    variant: Literal["group", "global"]
    seeds: Seeds
    reported: Literal["last iteration"]
    notes: list[str]
    iterations: list[Iteration]
    controls: dict[Literal["placebo", "shuffle"], Control] | Absent = Field(
        None, description="TTM with other pseudo-labels: drawn at random, or moved to other groups."
    )
    holdout: Holdout | Absent = Field(
        None, description="TTM on some groups, scored on the others; positions as in the score arrays."
    )
    audit_labels: LabelAudit | Absent = Field(
        None,
        description="Every seed was run again with the captions of each group permuted; every selection was the same.",
    )


class SimpleMatchRecord(_Part):
    """How SimpleMatch's overfitting step went on a task."""

    hyperparameters: dict[str, Any]
    seeds: Seeds
    restarts: Annotated[list[AtLeastOne], Field(min_length=1)] = Field(
        description="For each seed, after how many restarts the step ended."
    )


class OracleRecord(_Part):
    """How the oracle went on a task."""

    reads_labels: Yes
    seeds: Seeds
    iterations: list[Iteration]


class UnreadAnswer(_Part):
    """An answer that chooses no option."""

    group_id: str
    question: str
    answer: str | None


class ChoiceRecord(_Part):
    """How the forced choices of a task were asked."""

    asked: Annotated[
        list[Literal["text", "image"]],
        Field(min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(_distinct),
    ] = Field(description="text: which caption fits an image; image: which image fits a caption.")
    orders: AtLeastOne = Field(
        description="How often each question was asked, with its options in another order; all answers must be right."
    )
    order: Literal["random", "both"] | Absent = None
    seed: int | Absent = Field(None, description="Of the order of options.")
    side_by_side: bool | Absent = Field(None, description="The images of a question were joined into one.")
    prompts: dict[str, str] | Absent = None
    unread: list[UnreadAnswer] = Field(
        description="Answers that choose no option and count as wrong; null where the model refused."
    )


class Difference(_Part):
    """A number beside that of the baseline."""

    task: str
    metric: str
    filter: str
    baseline: Number
    value: Number
    difference: Number = Field(description="value - baseline.")
    paired: bool
    ci: Interval | None
    p: Number | None
    p_holm: Number | None = Field(description="Adjusted over the tasks of one metric and filter.")
    test: Literal["mcnemar", "sign_flip"] | None
    won: int | None
    lost: int | None


class BaselineRecord(_Part):
    """The run that this one was compared with."""

    file: str
    sha256: str
    model_name: str
    rows: list[Difference]
    refused: str | None = Field(description="Why there are no rows: another version or other data.")


class TaskError(_Part):
    """What failed."""

    task: str | None
    stage: str
    type: str
    message: str


class Samples(_Part):
    """How many groups a task has, and how many were scored."""

    original: int
    effective: int


class CachedScores(_Part):
    """What of the raw scores an earlier run kept."""

    key: str
    date: str | Absent = None
    blocks: AtLeastOne | Absent = None
    of: AtLeastOne | Absent = None


class Dataset(_Part):
    """Where a task's data came from."""

    source: dict[str, Any]
    revision: str | None
    fingerprint: str
    n_groups: AtLeastOne
    shape: Annotated[list[int], Field(min_length=2, max_length=2)]
    license: str
    from_store: CachedScores | Absent = Field(
        None,
        description="What of the raw scores an earlier run kept: a finished entry (date), or blocks (blocks, of).",
    )


class Artifact(_Part):
    """A file beside the document."""

    model_config = ConfigDict(extra="allow")

    kind: str
    sha256: Digest
    bytes: int
    task: str | Absent = None


class Breakdown(_Part):
    """The numbers of the groups that have a value of a tag."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number | None]

    groups: Number | None


class ResultsDocument(_Part):
    """One run of one model.

    Rates are fractions in [0, 1], scores and thresholds are logits, undefined is null. A superset of the keys of
    lm-evaluation-harness.
    """

    schema_version: Literal["1.0"]
    status: Literal["running", "done", "failed", "interrupted"] = Field(
        description="running while tasks are left: the file is rewritten after each."
    )
    task_status: dict[str, Literal["done", "failed", "pending"]] | Absent = Field(
        None, description="Every task that the run is to do."
    )
    track: Track = Field(description="The track furthest from plain scoring that any number belongs to.")
    groups: dict[str, dict[str, Number | None]] | Absent = Field(
        None, description="Dataset -> unweighted mean of its tasks, when all of them were run."
    )
    group_subtasks: dict[str, list[str]] | Absent = None
    tracks: ByTask[dict[Key, Track]] = Field(
        description="Task -> metric,filter -> track. Tracks are never ranked together."
    )
    results: ByTask[dict[Key, Number | None]] = Field(
        description="Task -> metric,filter -> mean over groups (and over seeds). Filters: none (raw), simple_match, "
        "ttm, oracle. Also metric_stderr,filter (over groups) and metric_seed_std,filter (over seeds)."
    )
    breakdowns: ByTask[dict[str, dict[str, Breakdown]]] | Absent = Field(
        None, description="Task -> tag -> value -> numbers of the groups that have it."
    )
    ci: ByTask[dict[Key, Interval | None]] = Field(description="95 % interval over groups, by config.interval.")
    chance: ByTask[dict[str, Number | None]] = Field(
        description="Task -> metric -> expected value of i.i.d. continuous scores; of random answers for forced "
        "choices."
    )
    ties: ByTask[dict[Key, Number | None]] = Field(
        description="Groups (images, for global metrics) in which the metric met an equality; the mean over seeds."
    )
    ttm: ByTask[TtmRecord]
    simple_match: ByTask[SimpleMatchRecord]
    oracle: ByTask[OracleRecord] | Absent = Field(
        None, description="TTM that keeps exactly the right matchings: a skyline that reads labels, never a result."
    )
    choice: ByTask[ChoiceRecord] | Absent = Field(
        None,
        description="Forced choices: task -> how they were asked. Numbers have the filter choice and a chance of "
        "their own.",
    )
    notes: ByTask[list[str]] | Absent = None
    configs: ByTask[dict[str, Any]] = Field(description="The task files, resolved.")
    versions: ByTask[int]
    n_shot: ByTask[Zero] | Absent = Field(None, alias="n-shot")
    n_samples: ByTask[Samples] = Field(alias="n-samples")
    higher_is_better: ByTask[dict[str, bool]]
    task_hashes: ByTask[str] = Field(description="Digest of decoded pixels and captions.")
    datasets: ByTask[Dataset]
    timing: ByTask[dict[str, Number]] = Field(description="Task -> stage -> seconds.")
    baseline: BaselineRecord | Absent = Field(None, description="Differences to another results document (--baseline).")
    errors: list[TaskError]
    config: dict[str, Any] = Field(description="The run's configuration, secrets redacted.")
    run_key: Digest | None = Field(None, description="The same command has the same key; null if nothing was run.")
    # The name that lm-evaluation-harness has for it; pydantic keeps names that begin with model_ to itself otherwise.
    model_config = ConfigDict(protected_namespaces=())
    model_name: str
    model_info: dict[str, Any]
    date: Number = Field(description="Seconds since 1970.")
    git_hash: str | None
    packages: dict[str, str]
    hardware: dict[str, Any]
    total_evaluation_time_seconds: Number
    command: str = Field(description="Secrets redacted.")
    artifacts: dict[str, Artifact]

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
                    yield f"{whole!r:.40} of task '{task:.80}', which is no whole number from 0"
        try:
            datetime.fromtimestamp(self.date, UTC)
        except (ValueError, OverflowError, OSError):
            yield f"'date' is {self.date!r:.40}, which is no time"


_WHOLE = (
    *("tracks", "ci", "chance", "ties", "configs", "versions", "n-samples", "higher_is_better", "task_hashes"),
    "datasets",
)
"""A task in ``results`` has to be in each of these, or its numbers cannot be told apart or explained."""


def keys_by_task() -> list[str]:
    """The keys of a results document that hold one entry a task, in its order."""
    found = []
    for name, field in ResultsDocument.model_fields.items():
        marks = [*field.metadata, *(mark for part in get_args(field.annotation) for mark in _marks(part))]
        if any(mark == _BY_TASK for mark in marks):
            found.append(field.alias or name)
    return found


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a results document, as it ships."""
    made = ResultsDocument.model_json_schema(schema_generator=_Schema)
    definitions = made.pop("$defs")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "ttmbench-results-1.0",
        "title": "ttmbench results",
        **_plain(made),
        "$defs": {name: _plain(one) for name, one in definitions.items()},
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
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if named:
        return {key: _plain(one) for key, one in value.items()}
    kept = {key: one for key, one in value.items() if key not in ("title", "default")}
    if "description" in kept:
        kept["description"] = " ".join(kept["description"].split())
    return {key: _plain(one, named=key == "properties") for key, one in kept.items()}


def _marks(part: Any) -> tuple[Any, ...]:
    return getattr(part, "__metadata__", ())
