"""The parts of a results document, typed: what it records of a task, and the kinds of values it has."""

from __future__ import annotations

from functools import partial
from operator import add
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

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


# A whole number stays one: JSON has but one kind, and files say 0 where 0 was meant. No table should show -0.0.
Real = Annotated[int | float, AfterValidator(partial(add, 0)), WithJsonSchema({"type": "number"})]
Positive = Annotated[int | float, Field(gt=0), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})]
Fraction = Annotated[int | float, Field(ge=0, le=1), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]
Share = Annotated[
    int | float,
    Field(gt=0, lt=1),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
]
Interval = Annotated[list[Real], Field(min_length=2, max_length=2)]
Digest = Annotated[str, Field(pattern=_DIGITS)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Seeds = Annotated[list[int], Field(min_length=1)]
Key = Annotated[str, Field(pattern=_KEY)]
Yes = Annotated[bool, AfterValidator(_yes), WithJsonSchema({"const": True})]
Zero = Annotated[int, Field(ge=0, le=0), WithJsonSchema({"const": 0})]
Absent = Annotated[SkipJsonSchema[None], AfterValidator(_never)]
"""Of a key that may be left out: its default, which no document states."""


class Part(BaseModel):
    """Keys of JSON: each is known, and of the type that is stated."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class Iteration(Part):
    """An iteration of TTM."""

    seed: int
    iteration: AtLeastOne
    threshold: Real
    selected: Count
    candidates: AtLeastOne
    coverage: Fraction
    tied: Count
    pseudo_label_accuracy: Fraction | None = Field(description="Reads labels: a diagnostic that steered nothing.")
    loss: list[Real] = Field(description="Mean of each epoch.")
    learning_rate: Real
    metrics: dict[str, Real | None]
    seconds: Real


class LearningRate(Part):
    """The learning rate of a run of TTM, and who stated it."""

    value: Positive
    source: Literal["stated", "default"]
    note: str | None


class Control(Part):
    """TTM with other pseudo-labels."""

    seeds: Seeds
    iterations: list[Iteration]


class Holdout(Part):
    """TTM on some groups, scored on the others."""

    share: Share = Field(description="Of the groups that are held out.")
    adapted_groups: Annotated[list[Count], Field(min_length=1)]
    scored_groups: Annotated[list[Count], Field(min_length=1)]
    seeds: Seeds
    iterations: list[Iteration]


class LabelAudit(Part):
    """A second run of every seed with permuted captions."""

    passed: Yes
    seeds: Seeds
    iterations: AtLeastOne


class Samples(Part):
    """How many groups a task has, and how many were scored."""

    original: int
    effective: int
    clusters: AtLeastOne | Absent = Field(
        None,
        description="How many clusters the scored groups make: those that share an image stand in one, which counts as "
        "one observation in standard errors, intervals and tests. Left out where the images are not known.",
    )


class Gain(Part):
    """A number of the adapted model minus that of the model as it was."""

    value: Real = Field(description="The mean over seeds.")
    ci: Interval | None = Field(description="95 % interval over groups, paired; null where there are no groups.")
    by_seed: Annotated[list[Real], Field(min_length=1)]
    seed_ci: Interval | None = Field(description="Student's 95 % interval over seeds; null for one seed.")


class AlsoRecord(Part):
    """Another task, measured with the model that was adapted to this one."""

    seeds: Seeds
    results: dict[Key, Real | None] = Field(description="As in results: none is the model as it was, ttm the adapted.")
    ci: dict[Key, Interval | None]
    chance: dict[str, Real | None]
    ties: dict[Key, Real | None]
    differences: dict[str, Gain] = Field(description="Metric -> ttm minus none.")
    version: int
    matching: Literal["group", "global"]
    n_samples: Samples = Field(alias="n-samples")
    fingerprint: str
    shape: Annotated[list[int], Field(min_length=2, max_length=2)]
    seconds: Real


class TtmRecord(Part):
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
    controls: dict[Literal["placebo", "shuffle"], Control] = Field(
        {}, description="TTM with other pseudo-labels: drawn at random, or moved to other groups."
    )
    holdout: Holdout | Absent = Field(
        None, description="TTM on some groups, scored on the others; positions as in the score arrays."
    )
    audit_labels: LabelAudit | Absent = Field(
        None,
        description="Every seed was run again with the captions of each group permuted; every selection was the same.",
    )
    differences: dict[str, Gain] | Absent = Field(
        None, description="Metric -> ttm minus none, where the adapted model was measured on other tasks too."
    )


class SimpleMatchRecord(Part):
    """How SimpleMatch's overfitting step went on a task."""

    hyperparameters: dict[str, Any]
    seeds: Seeds
    restarts: Annotated[list[AtLeastOne], Field(min_length=1)] = Field(
        description="For each seed, after how many restarts the step ended."
    )


class OracleRecord(Part):
    """How the oracle went on a task."""

    reads_labels: Yes
    seeds: Seeds
    iterations: list[Iteration]


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


class ClassesRecord(Part):
    """The classes of a task and the prompts that name them."""

    names: str = Field(description="Where they come from.")
    templates: str = Field(description="Where they come from.")
    n_classes: AtLeastOne
    n_templates: AtLeastOne
    sha256: Digest = Field(description="Of both lists.")
    doubled: dict[str, list[Count]] = Field(description="Names that several classes have -> these; they always tie.")


class RerankRecord(Part):
    """The model that chose the candidates which were ranked."""

    model: str
    k: AtLeastOne = Field(description="Candidates of each query.")
    fingerprint: dict[str, Any]


class RankingRecord(Part):
    """How a task was ranked. Scopes: i2t (images look for captions), t2i (captions look for images), class."""

    kind: Literal["retrieval", "classification"]
    queries: dict[str, AtLeastOne]
    candidates: dict[str, AtLeastOne]
    resampled: str = Field(description="What standard errors and intervals are over.")
    classes: ClassesRecord | Absent = None
    rerank: RerankRecord | Absent = None


class Difference(Part):
    """A number beside that of the baseline."""

    task: str
    metric: str
    filter: str
    baseline: Real
    value: Real
    difference: Real = Field(description="value - baseline.")
    paired: bool
    ci: Interval | None
    p: Real | None
    p_holm: Real | None = Field(description="Adjusted over the tasks of one metric and filter.")
    test: Literal["mcnemar", "sign_flip"] | None
    won: int | None
    lost: int | None
    clusters: AtLeastOne | Absent = Field(None, description="Of the paired groups, where it is fewer than these.")


class BaselineRecord(Part):
    """The run that this one was compared with."""

    file: str
    sha256: str
    model_name: str
    rows: list[Difference]
    refused: str | None = Field(description="Why there are no rows: another version or other data.")


class TaskError(Part):
    """What failed."""

    task: str | None
    stage: str
    type: str
    message: str


class Truncated(Part):
    """Captions that are longer than the model reads."""

    captions: Count = Field(description="Distinct captions that were cut.")
    of: AtLeastOne = Field(description="Distinct captions of the task.")
    groups: Count = Field(description="Groups that have one of them.")


class Undecided(Part):
    """Pairs whose score is a bound or missing, and how many were scored."""

    pairs: int
    of: int


class StoreEntry(Part):
    """What of the raw scores an earlier run kept."""

    key: str
    date: str | Absent = None
    blocks: AtLeastOne | Absent = None
    of: AtLeastOne | Absent = None
    hardware: list[dict[str, Any]] | Absent = Field(
        None, description="On what they were computed, as the document's hardware says it of this run."
    )


class Coverage(Part):
    """Of a task whose groups are left out where an image is not there: how many there are, and which are missing."""

    rows: AtLeastOne = Field(description="Groups of the release.")
    here: AtLeastOne = Field(description="Groups whose images are all there; a run with a limit scores fewer.")
    missing: list[str] = Field(description="Ids of the others.")


class Dataset(Part):
    """Where a task's data came from."""

    source: dict[str, Any]
    revision: str | None
    fingerprint: str
    n_groups: AtLeastOne
    shape: Annotated[list[int], Field(min_length=2, max_length=2)]
    true_captions: Annotated[int, Field(ge=2)] | Absent = Field(
        None, description="How many captions are true for each image, the first ones; left out where one is."
    )
    coverage: Coverage | Absent = Field(
        None, description="What the numbers are of, where groups without their images are left out."
    )
    license: str
    groups_sha256: Digest | Absent = Field(None, description="Of ids and tags of the groups, in order.")
    from_store: StoreEntry | Absent = Field(
        None,
        description="What of the raw scores an earlier run kept: a finished entry (date), or blocks (blocks, of).",
    )


class Artifact(Part):
    """A file beside the document."""

    model_config = ConfigDict(extra="allow")

    kind: str
    sha256: Digest
    bytes: int
    task: str | Absent = None

    @property
    def measured_on(self) -> str | None:
        """The other task that an adapted model was measured on, which the file is of; None for its own task."""
        other = (self.model_extra or {}).get("measured_on")
        return other if isinstance(other, str) else None


class TagMeanRecord(Part):
    """A mean of means over the values of tags."""

    by: Annotated[list[str], Field(min_length=1)] = Field(description="Tags, from the outermost to the innermost.")
    cells: Count = Field(description="How many combinations of values count.")
    groups: Count = Field(description="How many groups these have.")
    numbers: dict[Key, Real | None] = Field(
        description="metric,filter, metric_stderr,filter and metric_seed_std,filter."
    )
    ci: dict[Key, Interval | None] = Field(
        {}, description="95 % interval over groups, by config.interval; cells are strata."
    )


class Breakdown(Part):
    """The numbers of the groups that have a value of a tag."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Real | None]

    groups: Real | None
