"""The arguments of models of open_clip, as `options` has those of the others."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from ttmbench.model_adapters._shared.options import Compiled, InPrecision, Text, Weights


class OpenClipFiles(Weights):
    """Which files a model of open_clip is loaded from."""

    model: Text | None = None
    """Name of an architecture (``ViT-B-32``), ``hf-hub:<id>``, or ``local-dir:<folder>``."""
    architecture: Text | None = Field(None, alias="model_config")
    """JSON file with an architecture, instead of ``model``: as in open_clip's ``model_configs``, or an
    ``open_clip_config.json``.
    """
    pretrained: Text | None = None
    """Weights for an architecture: a tag (``laion2b_s34b_b79k``), a file (safetensors, or a checkpoint of
    open_clip's training or OpenAI's code, such as ``epoch_32.pt``), or ``hf-hub:<id>[/file]``.
    """
    revision: Text | None = None
    """Commit, tag or branch of the Hub repository."""
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Scale of LoRA factors A and B of rank r in the file: weights become W + lora_alpha / r B A."""
    interpolate: Annotated[float, Field(ge=0, le=1)] | None = None
    """Interpolate between the weights of ``base`` (0) and ``pretrained`` (1), as in WiSE-FT; the number of text
    positions is that of ``pretrained``.
    """
    base: Text = "openai"
    """Base weights for ``interpolate``: a tag of the same architecture, or a file."""
    resample_positions: bool = False
    """Resample position embeddings where the weights are for another image size or caption length than the
    architecture; without it such weights are refused.
    """

    @model_validator(mode="after")
    def _check_architecture(self) -> Self:
        if (self.model is None) == (self.architecture is None):
            how = "model=NAME (or hf-hub:ID, local-dir:FOLDER), or model_config=FILE for an architecture of your own"
            raise ValueError(f"give {how}" if self.model is None else f"give either {how}, not both")
        return self


class OpenClipOptions(Compiled, InPrecision, OpenClipFiles):
    """A model of open_clip."""

    quick_gelu: bool | None = None
    """Activation: QuickGELU (OpenAI's CLIP and models fine-tuned from it) or GELU (default: from the tag, the
    ``open_clip_config.json`` or the architecture).
    """
