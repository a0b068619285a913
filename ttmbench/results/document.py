"""The results document, typed: what a run writes is checked by it, what is read is, and its JSON Schema is made of it.

A key of results is a field of `ResultsDocument`; one that holds an entry a task has the type `ByTask`. After a change
``python scripts/docs/schema.py`` rewrites ``schemas/results-1.0.json``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.json_schema import SkipJsonSchema

from ttmbench._util.file_io import json_digest
from ttmbench._util.third_party import near_name
from ttmbench.errors import AssertionNotMet, UsageError
from ttmbench.model import UndecidedPairs
from ttmbench.results.numbers import (
    AT,
    CHOICE,
    ENTRIES,
    RAW,
    SLASH,
    STORED_SCORES,
    TTM,
    Extent,
    Number,
    Origin,
    from_entries,
    read_key,
    together,
)
from ttmbench.types import Need, Track

MACHINE = frozenset({"device", "attn_implementation", "compiled", "engine", "n_parameters", "quick_gelu"})
"""Keys of fingerprints that do not say which model it is (the activation is part of ``config_sha256``)."""
PLACES = frozenset({"pretrained", "file"})
"""Keys that name where weights came from: they count only where no digest of the weights does."""
UNKNOWN = "unknown"
"""What numbers and tables state as the training data of a model that says nothing of them."""
LOCAL = "local-dir:"  # before the folder of weights
SCHEMA_VERSION = "1.0"
_DIGITS = r"^[0-9a-f]{64}$"
_KEY = r"^[A-Za-z0-9_]+,[A-Za-z0-9_]+$"


def _never(value: None) -> None:
    raise ValueError("is omitted, not null, where there is none")


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError("names something twice")
    return values


# A whole number stays one: JSON has but one kind, and files say 0 where 0 was meant. No table should show -0.0.
Real = Annotated[int | float, AfterValidator(partial(operator.add, 0)), WithJsonSchema({"type": "number"})]
Positive = Annotated[int | float, Field(gt=0), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})]
Fraction = Annotated[
    int | float,
    Field(ge=0, le=1),
    AfterValidator(partial(operator.add, 0)),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1}),
]
NotNegative = Annotated[int | float, Field(ge=0), WithJsonSchema({"type": "number", "minimum": 0})]
Interval = Annotated[list[Real], Field(min_length=2, max_length=2)]
Digest = Annotated[str, Field(pattern=_DIGITS)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
AtLeastOne = Annotated[int, Field(ge=1)]
Seeds = Annotated[list[int], Field(min_length=1)]
Key = Annotated[str, Field(pattern=_KEY)]
Absent = Annotated[SkipJsonSchema[None], AfterValidator(_never)]
"""Of a key that may be omitted: its default, which no document states."""


class Part(BaseModel):
    """Keys of JSON: each is known, and of the type that is stated."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class Samples(Part):
    """How many groups a task has, and how many were scored."""

    original: Count = Field(description="Groups of the task; the scored ones if its file states no size.")
    effective: Count = Field(description="Groups that were scored.")
    clusters: AtLeastOne | Absent = Field(
        None,
        description="Of groups that share an image: one observation in standard errors, intervals and tests. Omitted "
        "where the images are not known.",
    )


class UnreadAnswer(Part):
    """An answer that chooses no option."""

    group_id: str
    question: str
    answer: str | None


class ChoiceRecord(Part):
    """How the forced choices of a task were asked."""

    asked: Annotated[
        list[Literal["text", "image"]],
        Field(min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(_distinct),
    ] = Field(description="text: choose a caption for an image; image: choose an image for a caption.")
    orders: AtLeastOne = Field(description="Number of orders of options that were asked; all answers must be correct.")
    order: Literal["random", "both"] | Absent = None
    seed: int | Absent = Field(None, description="Seed of the order of options.")
    side_by_side: bool | Absent = Field(None, description="The images of a question were joined into one.")
    prompts: dict[str, str] | Absent = Field(None, description="text or image -> prompt with {caption}.")
    unread: list[UnreadAnswer] = Field(
        description="Answers that choose no option and count as incorrect; null is a refusal."
    )


class ClassesRecord(Part):
    """The classes of a task and the prompts that name them."""

    names: str = Field(description="Where they come from.")
    templates: str = Field(description="Where they come from.")
    n_classes: AtLeastOne
    n_templates: AtLeastOne
    sha256: Digest = Field(description="sha256 of names and templates.")
    doubled: dict[str, list[Count]] = Field(description="Name -> classes that share it; they always tie.")


class RerankRecord(Part):
    """The model that selected the candidates for ranking."""

    model: str
    k: AtLeastOne = Field(description="Number of candidates of each query.")
    fingerprint: dict[str, Any]


class RankingRecord(Part):
    """How a task was ranked. Scopes: i2t (images look for captions), t2i (captions look for images), class."""

    kind: Literal["retrieval", "classification"]
    queries: dict[str, AtLeastOne]
    candidates: dict[str, AtLeastOne]
    resampled: str = Field(description="Unit of standard errors and intervals.")
    classes: ClassesRecord | Absent = None
    rerank: RerankRecord | Absent = None


class Difference(Part):
    """A number next to that of the baseline."""

    task: str
    metric: str
    method: str
    baseline: Real
    value: Real
    difference: Real = Field(description="Value minus baseline.")
    paired: bool = Field(description="Whether groups were paired; if not, the rest is null.")
    ci: Interval | None = Field(description="95 % interval of the difference: paired percentile bootstrap.")
    p: Real | None
    p_holm: Real | None = Field(description="p with Holm's correction over the tasks of one metric and method.")
    test: Literal["mcnemar", "sign_flip"] | None = Field(
        description="mcnemar: McNemar's exact test; sign_flip: paired permutation test."
    )
    won: int | None = Field(description="Groups in which this run is better.")
    lost: int | None = Field(description="Groups in which it is worse.")
    clusters: AtLeastOne | Absent = Field(
        None, description="Clusters of the paired groups; omitted if every group is one."
    )


class BaselineRecord(Part):
    """The run that this one was compared with."""

    file: str
    sha256: str
    model_name: str
    rows: list[Difference]
    refused: str | None = Field(description="Why there are no rows: another version or other data.")


class TaskError(Part):
    """A task or stage that failed, and why."""

    task: str | None = Field(description="null if the model could not be loaded.")
    stage: str = Field(description="model, load, prepare, score, a method, save, or run for anything else.")
    type: str
    message: str


class Truncated(Part):
    """Captions that are longer than the model reads."""

    captions: Count = Field(description="Distinct captions that were cut.")
    of: AtLeastOne = Field(description="Distinct captions of the task.")
    groups: Count = Field(description="Groups with at least one truncated caption.")


class Undecided(Part):
    """Pairs whose score is a bound or missing, or for which yes and no are improbable, and how many were scored."""

    pairs: int
    of: int = Field(description="Scored pairs; 8 of them where all scores came from the cache.")
    mass: Real | Absent = Field(None, description="Mean of P(yes) + P(no).")
    instead: str | Absent = Field(None, description="The most frequent first token where both are improbable.")


class StoreEntry(Part):
    """Raw scores that an earlier run cached."""

    key: str
    date: str | Absent = None
    blocks: AtLeastOne | Absent = None
    hardware: list[dict[str, Any]] | Absent = Field(None, description="Hardware that computed the scores.")


class Coverage(Part):
    """How many groups of a task have their images, and which do not."""

    rows: AtLeastOne = Field(description="Groups of the published dataset.")
    here: AtLeastOne = Field(description="Groups whose images all exist locally, regardless of --limit.")
    missing: list[str] = Field(description="IDs of the groups with missing images.")


class Dataset(Part):
    """Where a task's data came from."""

    source: dict[str, Any] = Field(
        description="Kind and settings of the source, with caption_template; stored_scores: the file."
    )
    revision: str | None = Field(description="Commit of the Hub that was read; null for a folder.")
    fingerprint: str = Field(description="As in task_hashes.")
    n_groups: AtLeastOne
    shape: Annotated[list[int], Field(min_length=2, max_length=2)]
    true_captions: Annotated[int, Field(ge=2)] | Absent = Field(
        None, description="Number of correct captions of each image, which come first; omitted if 1."
    )
    coverage: Coverage | Absent = Field(None, description="How many groups have their images, if others are skipped.")
    license: str
    groups_sha256: Digest | Absent = Field(None, description="sha256 of IDs and tags of the groups, in order.")
    from_store: StoreEntry | Absent = Field(
        None,
        description="Raw scores from the cache: the entry (with its date), or the number of blocks.",
    )


class Artifact(Part):
    """A file next to the document."""

    model_config = ConfigDict(extra="allow")

    kind: str
    sha256: Digest
    bytes: int
    task: str
    measured_on: str | Absent = Field(None, description="Other task that the file belongs to (--also).")


class ModelInfo(Part):
    """What is known of the model; nothing of that of stored scores."""

    model_config = ConfigDict(extra="allow")

    capabilities: list[str] = Field([], description="Base classes of the model.")
    fingerprint: dict[str, Any] = Field({}, description="What it states of itself.")
    trained_on: list[str] | None = Field(None, description="Image collections that it was trained on; null if unknown.")
    finetuned: dict[str, Any] = Field(
        {}, description="Tasks, loss, hyperparameters, preset, seed and base of finetuned weights."
    )
    usage: dict[str, Any] = Field({}, description="Requests, tokens and cost of a model behind a server.")


class TagMeanRecord(Part):
    """A mean of means over the values of tags."""

    by: Annotated[list[str], Field(min_length=1)] = Field(description="Tags, outermost first.")
    cells: Count = Field(description="Number of combinations of values in the mean.")
    groups: Count = Field(description="Number of groups in these combinations.")
    numbers: dict[Key, Fraction | None] = Field(description="As in results.")
    ci: dict[Key, Interval | None] = Field({}, description="95 % interval over groups; cells are strata.")


class Breakdown(Part):
    """The numbers of the groups that have a value of a tag."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Real | None]

    groups: Real | None


class MethodCost(Part):
    """What a method cost with one seed, counted at every call."""

    image_rows: Count = Field(description="Images encoded (forward passes).")
    caption_rows: Count = Field(description="Captions encoded (forward passes).")
    image_rows_backward: Count = Field(description="Those whose gradient was computed.")
    caption_rows_backward: Count = Field(description="Those whose gradient was computed.")
    optimizer_steps: Count
    views: Count = Field(description="Augmented images that were encoded.")
    reward_rows: Count = Field(description="Images and captions that a reward model encoded.")
    encoder_passes: NotNegative = Field(
        description="One unit encodes every image, or every caption, once; a backward pass counts twice."
    )
    view_seconds: NotNegative = Field(
        description="Seconds to make and encode views, even if an earlier method of the run made them."
    )
    seconds: NotNegative = Field(description="Wall time, including that of all views.")


class TrainedParameters(Part):
    """The parameters that a method trained."""

    train: str | None = Field(description="Value of the setting `train`; null if the method has none.")
    parameters: AtLeastOne = Field(description="Number of trained values.")
    names_sha256: Digest = Field(description="sha256 of the parameters' names.")


class IterationRecord(Part):
    """An iteration of TTM or of a method of its kind. What uses labels does not influence the run."""

    seed: int
    iteration: AtLeastOne
    threshold: Real = Field(description="tau_t: logits, or a fraction with the share rule.")
    selected: Count = Field(description="Pseudo-labels: groups, or pairs in the global variant.")
    candidates: AtLeastOne = Field(description="Groups, or pairs, that could be selected.")
    coverage: Fraction = Field(description="selected divided by candidates.")
    tied: Count = Field(description="Candidates that no threshold could select, because they tie.")
    pseudo_label_accuracy: Fraction | None = Field(
        description="Fraction of selected that are correct; uses labels, for diagnosis; null if nothing was selected."
    )
    loss: list[Real] = Field(
        description="Mean loss of each epoch over batches, weighted by their size; empty if nothing was selected."
    )
    learning_rate: Real = Field(description="Learning rate at the start of the iteration.")
    metrics: dict[str, Real | None] = Field(description="Metric -> value after the iteration.")
    seconds: Real = Field(description="Wall time.")


class Gain(Part):
    """A number of the adapted model minus that of the model as it was."""

    value: Real = Field(description="Mean over seeds.")
    ci: Interval | None = Field(description="95 % interval over groups, paired; null without groups.")
    by_seed: Annotated[list[Real], Field(min_length=1)]
    seed_ci: Interval | None = Field(description="Student's 95 % interval over seeds; null for one seed.")


class AlsoMethod(Part):
    """A method whose trained model was measured on another task."""

    seeds: Seeds
    differences: dict[str, Gain] = Field(description="Metric -> value of the method minus the raw value.")


class AlsoRecord(Part):
    """Another task, measured with the model that was adapted to this one."""

    results: dict[Key, Fraction | None] = Field(
        description="Methods: none (before), and names of methods (after each)."
    )
    ci: dict[Key, Interval | None]
    chance: dict[str, Real | None]
    ties: dict[Key, Real | None]
    methods: dict[str, AlsoMethod] = Field(description="Name -> method that leaves a trained model.")
    version: int
    matching: Literal["group", "global"]
    n_samples: Samples = Field(alias="n-samples")
    fingerprint: str
    shape: Annotated[list[int], Field(min_length=2, max_length=2)]
    seconds: Real

    @property
    def extent(self) -> Extent:
        """How many groups were scored, of how many."""
        counts = self.n_samples
        return Extent(counts.effective, counts.original, counts.effective < counts.original)


class MethodChance(Part):
    """How the chance levels of a method were found: it was run on random scores or features."""

    distribution: str = Field(description="Distribution of the random scores or features.")
    draws: AtLeastOne = Field(description="Number of random groups.")


class MethodAudit(Part):
    """Every seed run again with the captions of each group in another order."""

    passed: Literal[True]
    compared: Count = Field(
        description="Groups that were compared: all by their selections; without iterations, those whose margin is "
        "above 1 % of the median margin."
    )
    of: Count = Field(description="Groups of all seeds.")


class HeldOutMetric(Part):
    """A metric of groups that were not trained on."""

    raw: Fraction | None = Field(description="Value of the raw model.")
    adapted: list[Fraction | None] = Field(description="Value of the trained model, for each seed.")
    gain: Gain | None = Field(None, description="What training on the other groups changed; null if undefined.")


class MethodHoldout(Part):
    """Training on a part of the groups, scored on the others."""

    share: Real = Field(description="Fraction of the groups that are held out.")
    adapted: Count = Field(description="Groups that were trained on.")
    scored: Count = Field(description="Groups that were held out.")
    metrics: dict[str, HeldOutMetric] = Field(description="Metric -> its values on held-out groups.")


class MethodReferences(Part):
    """The items of another task by which a method measured those of this one."""

    task: str = Field(description="Name of the task; the setting `references` gives the number of its groups.")
    images: AtLeastOne = Field(description="Number of distinct items.")
    captions: AtLeastOne = Field(description="Number of distinct items.")
    data_sha256: Digest = Field(description="sha256 over its images, their reading options and captions.")


class MethodReward(Part):
    """The model whose scores were a method's rewards."""

    model: str = Field(description="Name of the model; the setting `reward` has its arguments.")
    fingerprint: dict[str, Any] = Field(description="Fingerprint of the model.")
    is_student: bool = Field(description="Whether it is the trained model before its training.")


class MethodRecord(Part):
    """How a test-time method went on a task. Its declarations are those of its registration."""

    settings: dict[str, Any] = Field(
        description="Every setting; of TTM, parts and train only if they are not the defaults, and tau_start is null "
        "if it was derived."
    )
    reference: str = Field(description="The method's paper; empty if there is none.")
    needs: list[Need] = Field(description="Inputs from the task and the model.")
    scope: Literal["row", "group", "batch", "stream", "task"] = Field(description="What an answer depends on.")
    reset: Literal["group", "batch", "never"] | None = Field(
        description="When the model was restored; null if nothing is trained."
    )
    order_dependent: bool = Field(description="Whether the order of the groups changes its scores.")
    assumes_matching: bool = Field(description="Whether it uses that a caption belongs to one image.")
    scores_before_update: bool = Field(description="Whether a group is scored before it is trained on.")
    seeds: Seeds = Field(description="A seed draws orders of captions and groups, and random numbers.")
    turns: Count = Field(description="Steps of its training; 0 if it trains nothing.")
    updates: Count = Field(description="Those that trained something.")
    loss: list[Real | None] = Field(description="The mean of each seed; null if nothing was trained.")
    trained: TrainedParameters | None = Field(description="Null if it trains nothing.")
    cost: list[MethodCost] = Field(description="Of each seed.")
    chance: MethodChance | None = Field(
        description="How its chance levels were found; null if they are those of the metrics."
    )
    notes: list[str] = Field([], description="Remarks on its numbers.")
    iterations: list[IterationRecord] | Absent = Field(
        None, description="Iterations of all seeds, seed by seed; absent for a method without iterations."
    )
    audit_labels: MethodAudit | Absent = Field(None, description="Result of `--audit_labels`.")
    references: MethodReferences | Absent = Field(
        None, description="Reference items, if the setting `references` names another task."
    )
    reward_model: MethodReward | Absent = Field(
        None, description="Reward model, if the setting `reward` names another model."
    )
    holdout: MethodHoldout | Absent = Field(
        None, description="Result of `--holdout`, for methods that leave a trained model."
    )
    differences: dict[str, Gain] | Absent = Field(
        None, description="Metric -> value of the method minus the raw value, with --also."
    )

    @property
    def uses_matching(self) -> bool:
        """Whether its scores use the matching assumption without training."""
        return self.assumes_matching and "gradients" not in self.needs


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
    groups: dict[str, dict[str, Fraction | None]] = Field(
        {}, description="Dataset -> unweighted mean of its tasks, when all of them were run."
    )
    group_subtasks: dict[str, list[str]] = Field({}, description="Dataset -> its tasks.")
    group_notes: dict[str, list[str]] = Field(
        {}, description="Dataset -> remarks: its tasks may share images, and its standard error assumes independence."
    )
    tracks: ByTask[dict[Key, Track]] = Field(
        description="Task -> metric,method -> track; controls have none. Tracks are never ranked together."
    )
    results: ByTask[dict[Key, Fraction | None]] = Field(
        description="Task -> metric,method -> mean over groups (and over seeds). Methods: none (raw), or a test-time "
        "method's name. Also metric_stderr,method (over groups) and "
        "metric_seed_std,method (over seeds)."
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
        description="Task -> metric,method -> 95 % interval over groups, by config.interval; null if undefined, for "
        "fewer than two groups or with --bootstrap_iters 0."
    )
    chance: ByTask[dict[str, Fraction | None]] = Field(
        description="Task -> metric -> expected value of i.i.d. continuous scores; of random answers for forced "
        "choices. Task -> metric,method -> that of a test-time method, which has a chance level of its own."
    )
    ties: ByTask[dict[Key, Real | None]] = Field(
        description="Task -> metric,method -> groups (images, for global metrics) in which the metric met an equality, "
        "a mean over seeds; null if unknown."
    )
    methods: ByTask[dict[str, MethodRecord]] = Field(
        {}, description="Task -> test-time method -> its record. Its numbers have its name."
    )
    also: ByTask[dict[str, AlsoRecord]] = Field(
        {},
        description="Task that a method trained on -> other task -> what the trained model is on it. It ranks nowhere.",
    )
    choice: ByTask[ChoiceRecord] = Field(
        {},
        description="Forced choices: task -> how they were asked. Numbers have the method choice and a chance of "
        "their own.",
    )
    ranking: ByTask[RankingRecord] = Field(
        {}, description="Task of kind retrieval or classification -> what was ranked, and the unit of intervals."
    )
    truncated: ByTask[Truncated] = Field(
        {},
        description="Task -> captions cut at the model's context length, for models that report this.",
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
    versions: ByTask[Count] = Field(description="Task -> version of its file.")
    n_shot: ByTask[Literal[0]] = Field({}, alias="n-shot", description="Task -> 0.")
    n_samples: ByTask[Samples] = Field(
        alias="n-samples", description="Task -> number of groups, of scored groups and of clusters."
    )
    higher_is_better: ByTask[dict[str, bool]] = Field(description="Task -> metric -> bool.")
    task_hashes: ByTask[str] = Field(
        description="Task -> sha256 over images, their reading options and captions of the scored groups, in order."
    )
    datasets: ByTask[Dataset] = Field(description="Task -> where its data came from.")
    timing: ByTask[dict[str, Real]] = Field(
        {},
        description="Task -> stage -> seconds: load, prepare, score, and each method that was run.",
    )
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
    model_info: ModelInfo = Field(description="What is known of the model.")
    date: Annotated[int | float, Field(ge=0, lt=253402300800), WithJsonSchema({"type": "number", "minimum": 0})] = (
        Field(description="Start of the run, seconds since 1970.")
    )
    git_hash: str | None = Field(description="Commit of the folder in which the command was run; null outside.")
    packages: dict[str, str] = Field(description="Package -> version, for packages that can change numbers.")
    code: dict[str, Digest | None] = Field(
        {},
        description="Package -> digest of its source: ttmbench, plugins that register models, sources, metrics, "
        "methods or schedules, and the model's if it was given as an object; null where the source cannot be read, and "
        "then the run is never resumed. Part of run_key; absent for stored scores.",
    )
    hardware: dict[str, Any] = Field(
        description="platform, machine, cpus, accelerator, matmul_precision, torch_threads, and cpu_capability: the "
        "instructions that torch uses (AVX2, AVX512); the last two are null without torch. peak_memory_bytes: the most "
        "that tensors held on all GPUs, or without a GPU this process."
    )
    total_evaluation_time_seconds: Real = Field(description="Seconds so far.")
    command: str = Field(description="Command line; empty from Python without one.")
    artifacts: dict[str, Artifact] = Field(description="Name -> file next to the document.")

    def to_dict(self) -> dict[str, Any]:
        """The document as JSON has it; keys of a newer minor version are not in it."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def extent(self, task: str) -> Extent:
        """How many groups of a task were scored, of how many.

        Where the task file does not state its size, both counts of ``n-samples`` are what was scored: then a run with
        a limit that was reached, or with ``samples``, is one of a part of unknown size.
        """
        counts, coverage = self.n_samples[task], self.datasets[task].coverage
        scored, total, limit = counts.effective, counts.original, self.config.get("limit")
        if coverage is not None and scored == coverage.here:
            return Extent(scored, coverage.rows, False)
        is_cut = (isinstance(limit, int) and scored >= limit) or self.config.get("samples") is not None
        if scored == total and is_cut and mapping(self.configs[task].get("group")).get("n_groups") is None:
            return Extent(scored, None, True)
        return Extent(scored, total, scored < total)

    @cached_property
    def numbers(self) -> list[Number]:
        """Every number, undefined ones too; a task's means over values of tags behind its own."""
        numbers = list[Number]()
        for task in self.results:
            entries, records = {key: getattr(self, key)[task] for key in ENTRIES}, self.methods.get(task, {})
            about = {
                "version": self.versions[task],
                "data": self.task_hashes[task],
                "from_file": self.datasets[task].source.get("kind") == STORED_SCORES,
            }
            own = from_entries(task, entries, **self._of_model([task], **about), extent=self.extent(task))
            for at, number in enumerate(own):
                seeds = tuple(records[number.method].seeds) if number.method in records else ()
                up = self.higher_is_better[task].get(number.metric, True)
                own[at] = replace(number, seeds=seeds, higher_is_better=up)
            numbers += own
            if task in self.tag_means:
                numbers += self._of_tags(task, own)
        return numbers

    def _of_tags(self, task: str, numbers: Sequence[Number]) -> Iterator[Number]:
        """The means of a task's numbers over values of tags."""
        for name, mean in self.tag_means[task].items():
            means = {one.key: one for one in from_entries("", {"results": mean.numbers, "ci": mean.ci})}
            for number in (number for number in numbers if number.key in means):
                is_limited = number.extent.limited
                yield replace(
                    number,
                    task=f"{task}{SLASH}{name}",
                    **{key: getattr(means[number.key], key) for key in ("value", "stderr", "interval", "seed_std")},
                    ties=None,
                    extent=Extent(mean.groups, None if is_limited else mean.groups, is_limited),
                    parts=mean.cells,
                )

    def _of_model(self, tasks: Iterable[str], **about: Any) -> dict[str, Any]:
        """What numbers of some tasks have in common: the model, and where they come from."""
        collections = self.model_info.trained_on
        about = {
            "date": datetime.fromtimestamp(self.date, UTC).isoformat(timespec="seconds"),
            "fingerprint": fingerprint_of(self.model_info.fingerprint),
            "trained_on": UNKNOWN if collections is None else ", ".join(collections) or "none",
            "seen": ", ".join({name: None for task in tasks for name in self.seen_in_training.get(task, ())}) or None,
            **about,
        }
        return {"model": self.model_name, "origin": Origin(**about)}

    @cached_property
    def means(self) -> list[Number]:
        """The stated means over the tasks of datasets, as far as the document has these tasks."""
        means: list[Number] = []
        for dataset, values in self.groups.items():
            tasks = self.group_subtasks.get(dataset, [])
            if tasks and self.results.keys() >= {*tasks}:
                extent, up = together(self.extent(task) for task in tasks), self.higher_is_better[tasks[0]]
                about = {"parts": len(tasks), "extent": extent, **self._of_model(tasks)}
                known = from_entries(dataset, {"results": values, "tracks": self.tracks[tasks[0]]}, **about)
                means += [replace(number, higher_is_better=up.get(number.metric, True)) for number in known]
        return means

    @cached_property
    def transfers(self) -> list[Transfer]:
        """Metrics of adapted models on their own task, then on other tasks (``--also``), by the task adapted to.

        A table with room for one metric of a task shows the match, if there is one.
        """
        transfers: list[Transfer] = []
        for task, others in self.also.items():
            own = [replace(number, adapted_to=task) for number in self.numbers if number.task == task]
            measured = {task: (own, self.configs[task].get("matching") if own else None)}
            measured |= {name: (self._elsewhere(task, name), other.matching) for name, other in others.items()}
            for method, adapted in self.methods.get(task, {}).items():
                gains: dict[str, Any] = {} if adapted.differences is None else {task: adapted}
                gains |= {name: other.methods.get(method) for name, other in others.items()}
                for name, gain in ((name, gain) for name, gain in gains.items() if gain is not None):
                    numbers, matching = measured[name]
                    raw = {number.metric: number.value for number in numbers if number.method == RAW}
                    match = "global_assignment_accuracy" if matching == "global" else "group_match"
                    transfers += [
                        Transfer(
                            replace(number, seeds=tuple(gain.seeds)),
                            raw[number.metric],
                            (gain.differences or {}).get(number.metric),
                            number.metric == match or match not in raw,
                        )
                        for number in numbers
                        if number.method == method and number.metric in raw
                    ]
        return transfers

    @cached_property
    def numbers_elsewhere(self) -> list[Number]:
        """Every number of adapted models on other tasks, of the task ``adapted to@measured on``; they have no track."""
        pairs = [(task, other) for task, others in self.also.items() for other in others]
        return [number for pair in pairs for number in self._elsewhere(*pair)]

    def _elsewhere(self, adapted_to: str, measured_on: str) -> list[Number]:
        """Method ``none`` is the model before adaptation; others, such as ``ttm``, are trained ones."""
        other = self.also[adapted_to][measured_on]
        known = from_entries(f"{adapted_to}{AT}{measured_on}", dict(other))
        about = self._of_model((), version=other.version, data=other.fingerprint, trained_on=None)
        about |= {"extent": other.extent, "adapted_to": adapted_to}
        seeds = {name: tuple(record.seeds) for name, record in other.methods.items() if name != RAW}
        return [replace(number, **about, seeds=seeds.get(number.method, ())) for number in known]

    def undecided_tasks(self) -> dict[str, str]:
        """Tasks of which most pairs have a bound or nothing for a score -> how many, and what helps, in a sentence."""
        return {
            task: f"{record.pairs} of {record.of} pairs; "
            + UndecidedPairs(record.pairs, record.of, record.mass, record.instead).remedy
            for task, record in self.undecided.items()
            if record.pairs > MOST_UNDECIDED * record.of
        }

    def check(self, assertions: Sequence[str] = ()) -> None:
        """UsageError if the baseline cannot be compared; AssertionNotMet, naming each assertion that is not met."""
        if self.baseline is not None and self.baseline.refused:
            raise UsageError(self.baseline.refused)
        if failures := [f"{text}: {why}" for text in assertions if (why := self._why_not(text)) is not None]:
            raise AssertionNotMet("; ".join(failures))

    def _why_not(self, assertion: str) -> str | None:
        task, key, sign, wanted = parse_assertion(assertion)
        name, value = read_key(key), None
        if key == COVERAGE and task in self.results:
            coverage = self.datasets[task].coverage
            value = 1.0 if coverage is None else coverage.here / coverage.rows
        for number in self.numbers:
            if (number.task, number.metric, number.method) == (task, name.metric, name.method):
                value = getattr(number, name.part)
        if value is None:
            return "the run has no such number"
        compare = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
        return None if compare[sign](value, wanted) else f"it is {value:.6g}"

    @model_validator(mode="after")
    def _is_whole(self) -> ResultsDocument:
        """What a JSON Schema cannot say: no task of ``results`` is only half there."""
        for name, about in type(self).model_fields.items():
            if _BY_TASK in about.metadata and about.is_required() and self.results.keys() - getattr(self, name):
                lacking = min(self.results.keys() - getattr(self, name))
                raise ValueError(f"'{about.alias or name}' lacks task '{lacking:.60}'")
        return self


@dataclass(frozen=True)
class Transfer:
    """A number of a model that a method trained on one task, beside that of the model as it was."""

    number: Number  # with ``adapted_to``, which may be its own task
    raw: float | None  # value of the model as it was
    gain: Gain | None  # ``value - raw`` with its intervals over groups and over seeds
    shown: bool  # whether tables with room for one metric of the task show this one

    @property
    def measured_on(self) -> str:
        """The task that the metric is of."""
        return self.number.task.rpartition(AT)[2]

    @property
    def adapted_to(self) -> str:
        """The task that the model was trained on, with the method if it is not TTM."""
        number = self.number
        return str(number.adapted_to) if number.method == TTM else f"{number.adapted_to} by {number.method}"


def fingerprint_of(declared: Mapping[str, object]) -> str | None:
    """sha256 of what ``model_info.fingerprint`` states except the machine, and paths of weights that have a digest.

    None if nothing is stated.
    """
    has_digest = any(key in declared for key in ("weights_sha256", "features_sha256"))
    identity = {
        key: value
        for key, value in declared.items()
        if key not in MACHINE and not (has_digest and (key in PLACES or str(value).startswith(LOCAL)))
    }
    return json_digest(identity, default=str) if identity else None


def mapping(value: object) -> Mapping[str, Any]:
    """A value of which the schema does not say what it is, if it is an object; else nothing."""
    return value if isinstance(value, Mapping) else {}


def keys_by_task() -> list[str]:
    """The keys of a results document that hold one entry a task, in its order."""
    fields = ResultsDocument.model_fields.items()
    return [about.alias or name for name, about in fields if _BY_TASK in about.metadata]


# ---- conditions on results, for scripts that have to stop when a number is not what it should be

COVERAGE = "coverage"  # share of a task's groups whose images are there
_ASSERTION = re.compile(
    r"^(?P<task>[A-Za-z0-9_.-]+(?:/[^<>=,./]+)?)\.(?P<key>\w+,\w+|coverage)\s*(?P<sign>>=|<=|>|<|==)\s*"
    r"(?P<value>[-+0-9.eE]+)$"
)


def parse_assertion(text: str) -> tuple[str, str, str, float]:
    """An assertion's task, result key, sign and value; UsageError if it cannot be read.

    A mean over values of tags is ``task/name``.

    >>> parse_assertion("colorswap.group_match,ttm>=0.9")
    ('colorswap', 'group_match,ttm', '>=', 0.9)
    >>> parse_assertion("valse/over_7_pieces.text_score,none<1")[0]
    'valse/over_7_pieces'
    >>> parse_assertion("svo_probes.coverage>=0.5")
    ('svo_probes', 'coverage', '>=', 0.5)
    """
    match = _ASSERTION.match(text.strip())
    if match is None:
        raise UsageError(f"--assert {text!r} cannot be read; write it like 'colorswap.group_match,ttm>=0.9'")
    try:
        value = float(match["value"])
    except ValueError:
        raise UsageError(f"--assert {text!r}: {match['value']} is not a number") from None
    return match["task"], match["key"], match["sign"], value


def check_names(
    assertions: Sequence[str], metrics: Mapping[str, Sequence[str]], methods: Sequence[str] | None = None
) -> None:
    """UsageError for an assertion on a number that the run will not have; it names the known ones.

    ``metrics`` are by task and mean over values of tags; ``methods`` is None where they are not known yet.
    """
    for text in assertions:
        task, key, _, _ = parse_assertion(text)
        if task not in metrics:
            raise UsageError(f"--assert {text!r}: no task '{task}' here{near_name(task, metrics)}")
        if key == COVERAGE:
            continue
        metric, name, _ = read_key(key)
        if metric not in metrics[task] and name != CHOICE:
            raise UsageError(
                f"--assert {text!r}: task '{task}' has no metric '{metric}'{near_name(metric, metrics[task])}"
            )
        if methods is not None and name not in methods:
            raise UsageError(f"--assert {text!r}: there will be no method '{name}'{near_name(name, methods)}")
