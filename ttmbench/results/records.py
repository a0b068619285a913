"""The parts of a results document, typed: what it records of a task, and the kinds of values it has."""

from __future__ import annotations

from functools import partial
from operator import add
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

_DIGITS = r"^[0-9a-f]{64}$"
_KEY = r"^[A-Za-z0-9_]+,[A-Za-z0-9_]+$"


def _never(value: None) -> None:
    raise ValueError("is omitted, not null, where there is none")


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
NotNegative = Annotated[int | float, Field(ge=0), WithJsonSchema({"type": "number", "minimum": 0})]
Interval = Annotated[list[Real], Field(min_length=2, max_length=2)]
Digest = Annotated[str, Field(pattern=_DIGITS)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Seeds = Annotated[list[int], Field(min_length=1)]
Key = Annotated[str, Field(pattern=_KEY)]
Yes = Annotated[bool, AfterValidator(_yes), WithJsonSchema({"const": True})]
Zero = Annotated[int, Field(ge=0, le=0), WithJsonSchema({"const": 0})]
Absent = Annotated[SkipJsonSchema[None], AfterValidator(_never)]
"""Of a key that may be omitted: its default, which no document states."""


class Part(BaseModel):
    """Keys of JSON: each is known, and of the type that is stated."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class Samples(Part):
    """How many groups a task has, and how many were scored."""

    original: int = Field(description="Groups of the task; the scored ones if its file states no size.")
    effective: int = Field(description="Groups that were scored.")
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
    filter: str
    baseline: Real
    value: Real
    difference: Real = Field(description="Value minus baseline.")
    paired: bool = Field(description="Whether groups were paired; if not, the rest is null.")
    ci: Interval | None = Field(description="95 % interval of the difference: paired percentile bootstrap.")
    p: Real | None
    p_holm: Real | None = Field(description="p with Holm's correction over the tasks of one metric and filter.")
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
    stage: str = Field(description="model, load, prepare, score, a filter, save, or run for anything else.")
    type: str
    message: str


class Truncated(Part):
    """Captions that are longer than the model reads."""

    captions: Count = Field(description="Distinct captions that were cut.")
    of: AtLeastOne = Field(description="Distinct captions of the task.")
    groups: Count = Field(description="Groups with at least one truncated caption.")


class Efficiency(Part):
    """Speed of scoring a task, and memory. Unknown keys are omitted."""

    images_per_second: Positive | Absent = Field(
        None, description="Distinct images per second of scoring; absent if scores came from the cache."
    )
    pairs_per_second: Positive | Absent = Field(
        None, description="Pairs of image and caption per second of scoring; absent likewise."
    )
    tokens_per_second: Positive | Absent = Field(
        None, description="Tokens that a chat model read per second of scoring; absent likewise."
    )
    peak_memory_bytes: Count | Absent = Field(None, description="Peak memory of the whole task, methods included.")
    peak_memory_of: Literal["cuda", "process"] | Absent = Field(
        None,
        description="cuda: tensors on all GPUs during the task; process: resident memory since the process started.",
    )


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
    of: AtLeastOne | Absent = None
    hardware: list[dict[str, Any]] | Absent = Field(None, description="Hardware that computed the scores.")


class Coverage(Part):
    """How many groups of a task have their images, and which do not."""

    rows: AtLeastOne = Field(description="Groups of the published dataset.")
    here: AtLeastOne = Field(description="Groups whose images all exist locally, regardless of --limit.")
    missing: list[str] = Field(description="IDs of the groups with missing images.")


class Dataset(Part):
    """Where a task's data came from."""

    source: dict[str, Any] = Field(
        description="Kind and settings of the source, with caption_template; stored_scores and stored_answers: files."
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
    task: str | Absent = None
    measured_on: str | Absent = Field(None, description="Other task that the file belongs to (--ttm_also).")


class TagMeanRecord(Part):
    """A mean of means over the values of tags."""

    by: Annotated[list[str], Field(min_length=1)] = Field(description="Tags, outermost first.")
    cells: Count = Field(description="Number of combinations of values in the mean.")
    groups: Count = Field(description="Number of groups in these combinations.")
    numbers: dict[Key, Real | None] = Field(description="As in results.")
    ci: dict[Key, Interval | None] = Field({}, description="95 % interval over groups; cells are strata.")


class Breakdown(Part):
    """The numbers of the groups that have a value of a tag."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Real | None]

    groups: Real | None
