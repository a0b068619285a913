"""The built-in model: a small CLIP trained on rendered scenes (scripts/train_tiny_clip.py), loaded as any hub model."""

from __future__ import annotations

from importlib.resources import files

from ttmbench.model_adapters import hf
from ttmbench.model_adapters._shared.options import TinyClipOptions, takes
from ttmbench.types import ModelFiles

ASSETS = files("ttmbench.model_adapters") / "assets"
FOLDERS = {0: str(ASSETS / "tiny_clip"), 1: str(ASSETS / "tiny_clip_seed1")}


@takes(TinyClipOptions)
def load(asked: TinyClipOptions) -> hf.TransformersModel:
    """Loads the weights included in the package."""
    return hf.load(pretrained=FOLDERS[asked.training_seed], **asked.model_dump(exclude={"training_seed"}))


@takes(TinyClipOptions)
def locate(asked: TinyClipOptions) -> list[ModelFiles]:
    """The folder of weights included in the package."""
    return hf.locate(pretrained=FOLDERS[asked.training_seed])
