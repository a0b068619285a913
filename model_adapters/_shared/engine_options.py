"""The arguments of models in an inference engine, as `options` has those of the others."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ttmbench.model_adapters._shared.options import Choosing, Count, Dtype, HubFiles, InPrecision, Text, YesNoOptions


class VllmOptions(Choosing, YesNoOptions, HubFiles, InPrecision):
    """A chat model in vLLM's engine (``vllm``)."""

    scorer: Literal["vqascore", "visualgpt", "choice"] = "vqascore"
    """``vqascore``, ``visualgpt`` (at alpha=0) or ``choice``, as the models of these names score."""
    prompt: Text = ""
    """User's turn with the image, for ``visualgpt``."""
    end_token: bool = False
    """Also score the token that ends the caption, for ``visualgpt``."""
    constrained: bool = True
    """Restrict answers of ``choice`` to the options; ``false`` lets the model write freely."""
    weights_dtype: Dtype | None = None
    """Data type of weights and computation (default: ``--dtype`` if it is half precision, else the checkpoint's)."""
    tensor_parallel_size: Count = 1
    """Number of GPUs that share the weights."""
    gpu_memory_utilization: Annotated[float, Field(ge=0.01, le=1)] = 0.9
    """Fraction of a GPU's memory for the engine."""
    max_model_len: Count | None = None
    """Maximum tokens of a prompt with its image (default: the model's number of positions)."""
    engine: dict[str, object] | None = None
    """Further arguments of vLLM's ``LLM``, such as ``engine.enforce_eager=true`` or ``engine.quantization=fp8``."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.device not in ("auto", "cuda", "cpu"):
            raise ValueError(
                f"device {self.device}: must be auto, cuda or cpu; vLLM uses the first tensor_parallel_size GPUs of "
                "CUDA_VISIBLE_DEVICES"
            )
        if self.dtype == "tf32":
            raise ValueError("vLLM has no tf32; use --dtype bf16, or weights_dtype=fp32 for full precision")
        if self.peft is not None:
            raise ValueError("vLLM reads whole weights: merge the adapter of peft and save the model first")
        return self
