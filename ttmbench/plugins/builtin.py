"""The built-in readers of data and parts of TTM, by import path, because their packages are higher layers."""

from __future__ import annotations

from ttmbench.types import MethodPart, SourceSpec

_READERS = (  # kind, module, summary
    ("rendered", "rendered", "scenes drawn from a seed; no download"),
    ("folder", "files", "a JSONL, JSON, CSV or TSV file of groups and an image folder"),
    ("annotations", "files", "a file and images in the data folder"),
    ("huggingface", "huggingface", "a dataset of the Hugging Face Hub: parquet tables"),
    ("hub_files", "files", "loose files of a Hub repository"),
    ("first_of", "combined", "the first available of several sources"),
    ("random_foils", "combined", "pairs of another source with randomly drawn distractors"),
    ("class_folders", "files", "a folder of images for each class, in the data folder"),
    ("whatsup", "whatsup", "WhatsUp's photographs, alone or in pairs"),
)
_FROM = "ttmbench.data.sources"
SOURCES = [
    SourceSpec(kind, f"{_FROM}.{module}:read_{kind}", summary, needs=f"{_FROM}.{module}:locate_{kind}")
    for kind, module, summary in _READERS
]
_PARTS, _TRAINING = "ttmbench.methods.parts", "ttmbench.methods.training"

PARTS: tuple[MethodPart, ...] = (  # of TTM, by kind and name; the first of each kind is the default
    MethodPart("selection", "threshold", f"{_PARTS}:select", "margin of at least tau_t; never a tie"),
    MethodPart("selection", "every", f"{_PARTS}:every", "every unit without a tie, whatever its margin"),
    MethodPart("pseudo_labels", "matching", f"{_PARTS}:matching", "the matching with the largest total"),
    MethodPart("pseudo_labels", "argmax", f"{_PARTS}:argmax", "each image's best caption; one may be used twice"),
    MethodPart("pseudo_labels", "sinkhorn", f"{_PARTS}:sinkhorn", "soft labels: a doubly stochastic plan per group"),
    MethodPart("loss", "own", f"{_PARTS}:own", "the loss that the model was trained with"),
    MethodPart("loss", "cross_entropy", f"{_PARTS}:cross_entropy", "to soft or hard labels, in both directions"),
    MethodPart("optimizer", "adamw", f"{_TRAINING}:adamw", "AdamW with weight_decay and betas"),
    MethodPart("optimizer", "sgd", f"{_PARTS}:sgd", "stochastic gradient descent with momentum"),
    MethodPart(
        "lr_schedule",
        "cosine",
        f"{_TRAINING}:cosine_within_iteration",
        "falls to lr_floor in an iteration, and restarts",
    ),
    MethodPart("lr_schedule", "linear", f"{_PARTS}:linear", "falls evenly to lr_floor, and restarts"),
    MethodPart("lr_schedule", "constant", f"{_PARTS}:constant", "the same throughout an iteration"),
    MethodPart("stopping", "never", f"{_PARTS}:never", "all iterations are run"),
    MethodPart("stopping", "no_change", f"{_PARTS}:no_change", "selection and pseudo-labels have not changed"),
    MethodPart("stopping", "overfit", f"{_PARTS}:overfit", "every selected group satisfies its pseudo-label"),
    MethodPart("teacher", "none", f"{_PARTS}:none", "the trained model makes the pseudo-labels and scores"),
    MethodPart("teacher", "ema", f"{_PARTS}:ema", "a moving average of the weights makes them and is scored"),
)
