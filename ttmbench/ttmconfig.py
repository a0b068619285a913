"""Settings of the test-time stage: one frozen model, checked where it is made, used by task files and runs alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ttmbench.errors import UsageError

DEFAULT_LEARNING_RATE = 1e-5
AUTHORS_LEARNING_RATE = 4e-5  # what the authors' published code takes where nothing is said
_WITHOUT_A_SOURCE = (
    f"{DEFAULT_LEARNING_RATE:g} is this package's default, {AUTHORS_LEARNING_RATE:g} that of the authors' code"
)
NO_LEARNING_RATE = f"none is known for this model and task; {_WITHOUT_A_SOURCE}"
UNKNOWN_LEARNING_RATE = f"the paper's value is legible in no copy at hand; {_WITHOUT_A_SOURCE}"
DEFAULT_SHARE = 0.5


class TTMConfig(BaseModel):
    """Hyperparameters of TTM; defaults are the paper's (section B.1 of arXiv:2510.07632) where it states them.

    Attributes:
        iterations: T.
        epochs: epochs in each iteration.
        lr: learning rate at the start of the first iteration; None takes the model's own default or 1e-5.
        lr_restart: factor on ``lr`` from one iteration to the next.
        lr_floor: where the cosine inside an iteration ends, as a share of its start.
        weight_decay: of AdamW.
        betas: of AdamW.
        batch_groups: groups in a batch, as given; None takes 50, or 100 for groups with one image, and a little more
            where that leaves a small rest (`batch_units`).
        keep_optimizer_state: carry AdamW's state from one iteration to the next.
        schedule: name of a threshold schedule.
        tau_start: tau_1; None or ``auto`` takes the margin that keeps ``coverage`` of the groups before any adaptation.
        tau_end: tau_T.
        coverage: share of groups that an automatic tau_1 keeps.
        threshold: ``absolute`` compares margins (global variant: pair scores) with tau_t in logits; ``share`` keeps
            the top 1 - tau_t, so that tau_1 and tau_T are shares in [0, 1]; ``auto`` is absolute for groups and share
            for the global variant.
        augment: train on random crops of enlarged pictures.
        augment_scale: how much larger these are in each direction.
        lr_note: what a reader should know of where ``lr`` comes from; printed with the results.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    iterations: int = Field(10, ge=1)
    epochs: int = Field(20, ge=1)
    lr: float | None = Field(None, gt=0, allow_inf_nan=False)
    lr_restart: float = Field(0.95, gt=0, le=1)
    lr_floor: float = Field(0.1, ge=0, le=1)
    weight_decay: float = Field(0.05, ge=0, allow_inf_nan=False)
    betas: tuple[float, float] = (0.9, 0.999)
    batch_groups: int | None = Field(None, ge=1)
    keep_optimizer_state: bool = False
    schedule: str = "linear"
    tau_start: float | None = Field(None, allow_inf_nan=False)
    tau_end: float = Field(0.0, allow_inf_nan=False)
    coverage: float = Field(0.25, gt=0, le=1)
    threshold: Literal["auto", "absolute", "share"] = "auto"
    augment: bool = False
    augment_scale: float = Field(1.1, gt=1, le=4)
    lr_note: str | None = None

    @field_validator("betas")
    @classmethod
    def _below_one(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("each of the two should be at least 0 and less than 1")
        return value

    @field_validator("lr", mode="before")
    @classmethod
    def _not_chosen(cls, value: Any) -> Any:
        if value == "auto":
            raise ValueError(
                "give a number: no rule that chooses it without labels held on all built-in tasks "
                "(docs/learning-rate.md); 'ttmbench analyze lr' shows what depends on it"
            )
        return value

    @field_validator("tau_start", mode="before")
    @classmethod
    def _auto(cls, value: Any) -> Any:
        return None if value == "auto" else value

    @model_validator(mode="after")
    def _shares_are_shares(self) -> TTMConfig:
        if self.threshold == "share":
            self._check_shares("threshold=share")
        return self

    def by_share(self, is_global: bool) -> bool:
        """Whether tau_t is a share, in the global variant or inside groups.

        Raises:
            UsageError: it is, and ``tau_start`` or ``tau_end`` is none.
        """
        shares = self.threshold == "share" or (self.threshold == "auto" and is_global)
        if shares:
            try:
                self._check_shares("threshold=share (the default of the global variant)")
            except ValueError as error:
                raise UsageError(str(error)) from None
        return shares

    def _check_shares(self, rule: str) -> None:
        for name, value in (("tau_start", self.tau_start), ("tau_end", self.tau_end)):
            if value is not None and not 0 <= value <= 1:
                raise ValueError(
                    f"{name}={value:g} is no share between 0 and 1, as {rule} takes it: the top 1 - {name} are kept; "
                    f"choose another {name}, or threshold=absolute for logits"
                )

    def with_changes(self, changes: dict[str, Any], origin: str) -> TTMConfig:
        """A copy with some settings replaced.

        Args:
            changes: setting -> value.
            origin: where they come from, for the message.

        Returns:
            The new settings, checked.

        Raises:
            UsageError: an unknown setting or a value out of range, named.
        """
        if "lr" in changes:
            changes = {"lr_note": None, **changes}
        try:
            return TTMConfig(**{**self.model_dump(), **changes})
        except ValidationError as error:
            raise UsageError(f"{origin}: {describe(error, TTMConfig)}") from None


def with_rate_note(preset: Mapping[str, Any]) -> dict[str, Any]:
    """A preset of a task file; one whose learning rate is written as unknown (``lr: null``) says so in ``lr_note``."""
    unknown = "lr" in preset and preset["lr"] is None
    return {"lr_note": UNKNOWN_LEARNING_RATE, **preset} if unknown else dict(preset)


def batch_units(total: int, default: int) -> int:
    """Units in a batch: the default, or slightly more where the total is just above a multiple of it (section B.1).

    >>> batch_units(102, 50), batch_units(400, 50), batch_units(135, 50), batch_units(7, 50)
    (51, 50, 50, 7)
    """
    if total <= default:
        return max(1, total)
    full, rest = divmod(total, default)
    return math.ceil(total / full) if 0 < rest <= 0.15 * default else default


def first_error(error: ValidationError) -> Any:
    """The error to tell: an unknown key if there is one, since it often explains a missing one."""
    return min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")


def describe(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """A pydantic error in one sentence: the first culprit by key, what is wrong, and a near name if there is one."""
    from difflib import get_close_matches

    first = first_error(error)
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = sorted(model.model_fields) if model else []
        near = get_close_matches(str(first["loc"][-1]), known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else (f"; known: {', '.join(known)}" if known else "")
        return f"unknown key '{key}'{hint}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"key '{key}' is missing"
    shown = repr(first["input"])
    got = f", got {shown}" if key and len(shown) < 80 else ""
    return f"'{key}': {message[0].lower()}{message[1:]}{got}" if key else message
