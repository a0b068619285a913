"""The built-in model: a small CLIP trained on rendered scenes (scripts/train_tiny_clip.py), loaded as any hub model."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from ttmbench.model_adapters import hf

from ttmbench.errors import UsageError

FOLDERS = {0: "tiny_clip", 1: "tiny_clip_seed1"}


def load(*, training_seed: int = 0, **options: Any) -> hf.ContrastiveModel:
    """Loads the weights that ship with the package.

    Args:
        training_seed: which training run, 0 or 1.
        options: as for `hf.load`, except ``pretrained``.

    Returns:
        An adapter.

    Raises:
        UsageError: no such training seed.
        DataError: the weights are damaged.
    """
    if training_seed not in FOLDERS:
        raise UsageError(f"training_seed must be one of {sorted(FOLDERS)}, got {training_seed}")
    folder = Path(str(files("ttmbench.model_adapters"))) / "assets" / FOLDERS[training_seed]
    return hf.load(pretrained=str(folder), **options)
