"""The parts of TTM that ship, by kind and name; the first of each kind is the default."""

from __future__ import annotations

from ttmbench.types import MethodPart

_SELECTION, _FINETUNE, _OTHERS = "ttmbench.ttm.selection", "ttmbench.ttm.finetune", "ttmbench.ttm.other_parts"

PARTS: tuple[MethodPart, ...] = (
    MethodPart("selection", "threshold", f"{_SELECTION}:select", "margin of at least tau_t; never a tie"),
    MethodPart("selection", "every", f"{_OTHERS}:every", "every unit without a tie, whatever its margin"),
    MethodPart("pseudo_labels", "matching", f"{_SELECTION}:matching", "the matching with the largest total"),
    MethodPart("pseudo_labels", "argmax", f"{_OTHERS}:argmax", "each image's best caption; one may be used twice"),
    MethodPart("pseudo_labels", "sinkhorn", f"{_OTHERS}:sinkhorn", "soft labels: a doubly stochastic plan per group"),
    MethodPart("loss", "own", f"{_OTHERS}:own", "the loss that the model was trained with"),
    MethodPart("loss", "cross_entropy", f"{_OTHERS}:cross_entropy", "to soft or hard labels, in both directions"),
    MethodPart("optimizer", "adamw", f"{_FINETUNE}:adamw", "AdamW with weight_decay and betas"),
    MethodPart("optimizer", "sgd", f"{_OTHERS}:sgd", "stochastic gradient descent with momentum"),
    MethodPart(
        "lr_schedule",
        "cosine",
        f"{_FINETUNE}:cosine_within_iteration",
        "falls to lr_floor in an iteration, and restarts",
    ),
    MethodPart("lr_schedule", "linear", f"{_OTHERS}:linear", "falls evenly to lr_floor, and restarts"),
    MethodPart("lr_schedule", "constant", f"{_OTHERS}:constant", "the same throughout an iteration"),
    MethodPart("stopping", "never", f"{_OTHERS}:never", "all iterations are run"),
    MethodPart("stopping", "no_change", f"{_OTHERS}:no_change", "selection and pseudo-labels have not changed"),
    MethodPart("stopping", "overfitted", f"{_OTHERS}:overfitted", "every selected group satisfies its pseudo-label"),
    MethodPart("teacher", "none", f"{_OTHERS}:none", "the trained model makes the pseudo-labels and scores"),
    MethodPart("teacher", "ema", f"{_OTHERS}:ema", "a moving average of the weights makes them and is scored"),
)
