"""The built-in model: a small CLIP trained on rendered scenes (scripts/train_tiny_clip.py), loaded as any hub model."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ttmbench.errors import UsageError
from ttmbench.model_adapters import hf
from ttmbench.model_adapters._shared.options import TinyClipOptions, takes
from ttmbench.types import ModelFiles

FOLDERS = {0: "tiny_clip", 1: "tiny_clip_seed1"}


@takes(TinyClipOptions)
def load(asked: TinyClipOptions) -> hf.TransformersModel:
    """Loads the weights included in the package; UsageError if there is no such training seed."""
    shared = asked.model_dump(exclude={"training_seed"})
    return hf.load(pretrained=str(_folder(asked.training_seed)), **shared)


def locate(*, training_seed: int = 0) -> list[ModelFiles]:
    """The folder of weights included in the package; UsageError if there is no such training seed."""
    return hf.locate(pretrained=str(_folder(training_seed)), offline=True)


def _folder(training_seed: int) -> Path:
    if training_seed not in FOLDERS:
        raise UsageError(f"training_seed must be one of {sorted(FOLDERS)}, got {training_seed}")
    return Path(str(files("ttmbench.model_adapters"))) / "assets" / FOLDERS[training_seed]
