"""The record of a test-time method in a results document, typed as `ttmbench.results.records` is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from ttmbench.results.records import (
    Absent,
    AtLeastOne,
    Count,
    Digest,
    Fraction,
    Free,
    Part,
    Real,
    Recomputed,
    Recorded,
    Seeds,
)
from ttmbench.types import Need

Scope = Literal["row", "group", "batch", "stream", "task"]
Reset = Literal["group", "batch", "never"]
NotNegative = Annotated[int | float, Field(ge=0), WithJsonSchema({"type": "number", "minimum": 0})]


class TrainedParameters(Part):
    """The parameters that a method trained."""

    train: Recomputed[str | None] = Field(description="As its setting `train` names them; null without one.")
    parameters: Recorded[AtLeastOne] = Field(description="How many numbers.")
    names_sha256: Recorded[Digest] = Field(description="Of their names.")


class MethodCost(Part):
    """What a method cost with one seed, counted at every call."""

    image_rows: Recorded[Count] = Field(description="Images through the tower, forward.")
    caption_rows: Recorded[Count] = Field(description="Captions through the tower, forward.")
    image_rows_backward: Recorded[Count] = Field(description="Those whose gradient was computed.")
    caption_rows_backward: Recorded[Count] = Field(description="Those whose gradient was computed.")
    optimizer_steps: Recorded[Count]
    views: Recorded[Count] = Field(description="Images made of others and encoded.")
    reward_rows: Recorded[Count] = Field(description="Images and captions through a reward model.")
    tower_passes: Recorded[NotNegative] = Field(
        description="In units of encoding every image, or every caption, once; a backward pass counts twice."
    )
    view_seconds: Recorded[NotNegative] = Field(
        description="Of making and encoding views, also where an earlier method of the run had made them."
    )
    seconds: Recorded[NotNegative] = Field(description="Wall time, with that of all of its views.")


class MethodChance(Part):
    """How the chance levels of a method were found: it was run on random scores or features."""

    distribution: Recomputed[str] = Field(description="What was drawn.")
    draws: Recomputed[AtLeastOne] = Field(description="How many groups.")


class MethodAudit(Part):
    """Every seed run again with the captions of each group in another order."""

    passed: Recorded[Literal[True]]
    compared: Recomputed[Count] = Field(description="Groups whose margin is above 1 % of the median margin.")
    of: Recomputed[Count] = Field(description="Groups, of all seeds.")


class HeldOutMetric(Part):
    """A metric of groups that were not trained on."""

    raw: Recorded[Fraction | None] = Field(description="Of the model as it is.")
    adapted: Recorded[list[Fraction | None]] = Field(description="Of the trained model, for each seed.")


class MethodHoldout(Part):
    """Training on a part of the groups, scored on the others."""

    share: Recomputed[Real] = Field(description="Of the groups, held out.")
    adapted: Recomputed[Count] = Field(description="Groups that were trained on.")
    scored: Recomputed[Count] = Field(description="Groups that were held out.")
    metrics: Recorded[dict[str, HeldOutMetric]] = Field(description="Metric -> its values on held-out groups.")


class MethodReferences(Part):
    """The items of another task by which a method measured those of this one."""

    task: Recorded[str] = Field(description="Its name; the setting `references` says how many of its groups.")
    images: Recorded[AtLeastOne] = Field(description="Distinct ones.")
    captions: Recorded[AtLeastOne] = Field(description="Distinct ones.")
    data_sha256: Recorded[Digest] = Field(description="Of the pixels of its images and of its captions.")


class MethodRecord(Part):
    """How a test-time method went on a task. Its declarations are those of its registration."""

    settings: Recomputed[dict[str, Any]] = Field(description="Every argument, defaults included.")
    reference: Recomputed[str] = Field(description="Its paper; empty without one.")
    needs: Recomputed[list[Need]] = Field(description="What it used of the task and the model.")
    scope: Recomputed[Scope] = Field(description="What an answer depends on.")
    reset: Recomputed[Reset | None] = Field(description="When the model was restored; null if nothing is trained.")
    order_dependent: Recomputed[bool] = Field(description="Whether the order of the groups changes its scores.")
    assumes_matching: Recomputed[bool] = Field(description="Whether it uses that a caption belongs to one image.")
    scores_before_update: Recomputed[bool] = Field(description="Whether a group is scored before it is trained on.")
    seeds: Recomputed[Seeds]
    turns: Recorded[Count] = Field(description="Steps of its training; 0 if it trains nothing.")
    updates: Recorded[Count] = Field(description="Those that trained something.")
    loss: Recorded[list[Real | None]] = Field(description="The mean of each seed; null if nothing was trained.")
    trained: Recorded[TrainedParameters | None] = Field(description="Null if it trains nothing.")
    cost: Recorded[list[MethodCost]] = Field(description="Of each seed.")
    chance: Recomputed[MethodChance | None] = Field(
        description="How its chance levels were found; null if they are those of the metrics."
    )
    positions: Recomputed[list[Fraction]] = Field(
        description="Share of rows whose best caption stands at each position of the shuffled group; equal shares "
        "unless a method prefers a position."
    )
    notes: Free[list[str]] = Field([], description="What should be known of its numbers.")
    audit_labels: Recorded[MethodAudit | Absent] = Field(None, description="With `--audit_labels`.")
    references: Recorded[MethodReferences | Absent] = Field(
        None, description="Of methods whose setting `references` names another task."
    )
    holdout: Recorded[MethodHoldout | Absent] = Field(
        None, description="With `--ttm_holdout`, of methods that leave a trained model."
    )

    @property
    def uses_matching(self) -> bool:
        """Whether scores of single pairs hold what a matching knows, so that SimpleMatch is their baseline.

        Those of a trained model do not.
        """
        return self.assumes_matching and self.reset is None
