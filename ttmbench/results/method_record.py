"""The records of TTM and of other test-time methods in a results document, typed as `ttmbench.results.records` is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ttmbench.method_spec import scores_use_matching
from ttmbench.results.records import (
    Absent,
    AtLeastOne,
    Count,
    Digest,
    Fraction,
    Interval,
    Key,
    NotNegative,
    Part,
    Positive,
    Real,
    Samples,
    Seeds,
    Share,
    Yes,
)
from ttmbench.types import Need

Scope = Literal["row", "group", "batch", "stream", "task"]
Reset = Literal["group", "batch", "never"]


class MethodCost(Part):
    """What a method cost with one seed, counted at every call."""

    image_rows: Count = Field(description="Images encoded (forward passes).")
    caption_rows: Count = Field(description="Captions encoded (forward passes).")
    image_rows_backward: Count = Field(description="Those whose gradient was computed.")
    caption_rows_backward: Count = Field(description="Those whose gradient was computed.")
    optimizer_steps: Count
    views: Count = Field(description="Augmented images that were encoded.")
    reward_rows: Count = Field(description="Images and captions that a reward model encoded.")
    tower_passes: NotNegative = Field(
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


class TrainingRecord(Part):
    """What the record of TTM and of each of its variants has."""

    seeds: Seeds
    cost: list[MethodCost] | Absent = Field(None, description="Cost of each seed.")
    trained: TrainedParameters | Absent = Field(None, description="Trained parameters.")
    positions: list[Fraction] | Absent = Field(
        None,
        description="As of other methods: fraction of rows whose best caption is at each position of the shuffled "
        "group; absent for global tasks.",
    )


class Iteration(Part):
    """An iteration of TTM."""

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


class LearningRate(Part):
    """The learning rate of a run of TTM, and who stated it."""

    value: Positive
    source: Literal["stated", "default"] = Field(
        description="stated: given by user, preset, task or model; default: the package's."
    )
    note: str | None = Field(description="What is known about its origin.")


class Control(TrainingRecord):
    """TTM with other pseudo-labels."""

    iterations: list[Iteration]


class Holdout(Part):
    """TTM on some groups, scored on the others."""

    share: Share = Field(description="Fraction of the groups that are held out.")
    adapted_groups: Annotated[list[Count], Field(min_length=1)] = Field(
        description="Positions of the groups that were adapted to; no image occurs in both parts."
    )
    scored_groups: Annotated[list[Count], Field(min_length=1)]
    seeds: Seeds
    iterations: list[Iteration]


class LabelAudit(Part):
    """A second run of every seed with permuted captions."""

    passed: Yes
    seeds: Seeds
    iterations: AtLeastOne


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

    seeds: Seeds
    results: dict[Key, Real | None] = Field(
        description="Filters: none (before), ttm (after), and names of other methods (after each)."
    )
    ci: dict[Key, Interval | None]
    chance: dict[str, Real | None]
    ties: dict[Key, Real | None]
    differences: dict[str, Gain] = Field(
        description="Metric -> value after TTM minus the raw value; empty without TTM."
    )
    methods: dict[str, AlsoMethod] | Absent = Field(None, description="Name -> method that leaves a trained model.")
    version: int
    matching: Literal["group", "global"]
    n_samples: Samples = Field(alias="n-samples")
    fingerprint: str
    shape: Annotated[list[int], Field(min_length=2, max_length=2)]
    seconds: Real


class TtmRecord(TrainingRecord):
    """How TTM went on a task."""

    hyperparameters: dict[str, Any] = Field(
        description="Every setting; parts and train if they are not the defaults; tau_start is null if it was derived."
    )
    learning_rate: LearningRate | Absent = Field(None, description="The learning rate used, and where it comes from.")
    preset: Literal["auto", "paper"]
    variant: Literal["group", "global"]
    reported: Literal["last iteration"]
    notes: list[str]
    iterations: list[Iteration] = Field(description="Iterations of all seeds, seed by seed.")
    controls: dict[Literal["placebo", "shuffle"], Control] = Field(
        {}, description="TTM with random or moved pseudo-labels."
    )
    holdout: Holdout | Absent = Field(None, description="TTM on some groups, scored on the others.")
    audit_labels: LabelAudit | Absent = Field(
        None,
        description="Whether every seed made the same selections when run again with permuted captions.",
    )
    differences: dict[str, Gain] | Absent = Field(
        None, description="Metric -> value after TTM minus the raw value, with --ttm_also."
    )


class SimpleMatchRecord(TrainingRecord):
    """How SimpleMatch's overfitting step went on a task."""

    hyperparameters: dict[str, Any]
    restarts: Annotated[list[AtLeastOne], Field(min_length=1)] = Field(
        description="Iterations after which each seed ended."
    )


class OracleRecord(TrainingRecord):
    """How the oracle went on a task."""

    reads_labels: Yes
    iterations: list[Iteration]


class MethodChance(Part):
    """How the chance levels of a method were found: it was run on random scores or features."""

    distribution: str = Field(description="Distribution of the random scores or features.")
    draws: AtLeastOne = Field(description="Number of random groups.")


class MethodAudit(Part):
    """Every seed run again with the captions of each group in another order."""

    passed: Literal[True]
    compared: Count = Field(description="Groups whose margin is above 1 % of the median margin.")
    of: Count = Field(description="Groups of all seeds.")


class HeldOutMetric(Part):
    """A metric of groups that were not trained on."""

    raw: Fraction | None = Field(description="Value of the raw model.")
    adapted: list[Fraction | None] = Field(description="Value of the trained model, for each seed.")


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

    settings: dict[str, Any] = Field(description="Every argument, defaults included.")
    reference: str = Field(description="The method's paper; empty if there is none.")
    needs: list[Need] = Field(description="Inputs from the task and the model.")
    scope: Scope = Field(description="What an answer depends on.")
    reset: Reset | None = Field(description="When the model was restored; null if nothing is trained.")
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
    positions: list[Fraction] = Field(
        description="Fraction of rows whose best caption is at each position of the shuffled group; equal "
        "unless a method prefers a position."
    )
    notes: list[str] = Field([], description="Remarks on its numbers.")
    audit_labels: MethodAudit | Absent = Field(None, description="Result of `--audit_labels`.")
    references: MethodReferences | Absent = Field(
        None, description="Reference items, if the setting `references` names another task."
    )
    reward_model: MethodReward | Absent = Field(
        None, description="Reward model, if the setting `reward` names another model."
    )
    holdout: MethodHoldout | Absent = Field(
        None, description="Result of `--ttm_holdout`, for methods that leave a trained model."
    )
    differences: dict[str, Gain] | Absent = Field(
        None, description="Metric -> value of the method minus the raw value, with --ttm_also."
    )

    @property
    def uses_matching(self) -> bool:
        """As `ttmbench.method_spec.scores_use_matching`."""
        return scores_use_matching(self.assumes_matching, self.needs)
