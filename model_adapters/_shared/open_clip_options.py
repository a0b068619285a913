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
    """Instead of a name, a JSON file with an architecture: one of open_clip's ``model_configs``, or an
    ``open_clip_config.json``."""
    pretrained: Text | None = None
    """With an architecture, a tag (``laion2b_s34b_b79k``), a file (safetensors, or a checkpoint of open_clip's training
    or of OpenAI's code: ``epoch_32.pt``), or ``hf-hub:<id>[/file]`` for a file of a Hub repository."""
    revision: Text | None = None
    """Commit, tag or branch of the Hub repository that a tag or ``hf-hub:`` names."""
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Of a file with LoRA factors A and B of rank r: weights become W + lora_alpha / r B A."""
    interpolate: Annotated[float, Field(ge=0, le=1)] | None = None
    """Between the weights of ``base`` (0) and of ``pretrained`` (1), tensor by tensor (WiSE-FT); the model has as many
    text positions as ``pretrained``."""
    base: Text = "openai"
    """With ``interpolate``, a tag of the same architecture, or a file."""

    @model_validator(mode="after")
    def _check_architecture(self) -> Self:
        if (self.model is None) == (self.architecture is None):
            how = "model=NAME (or hf-hub:ID, local-dir:FOLDER), or model_config=FILE for an architecture of your own"
            raise ValueError(f"give {how}" if self.model is None else f"give either {how}, not both")
        return self


class OpenClipOptions(Compiled, InPrecision, OpenClipFiles):
    """A model of open_clip."""

    quick_gelu: bool | None = None
    """The activation: QuickGELU (OpenAI's CLIP and what was finetuned from it) or GELU; by default that of the tag, of
    the ``open_clip_config.json``, or of the architecture."""
