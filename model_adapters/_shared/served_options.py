"""The arguments of models behind servers, as `options` has those of the others."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ttmbench.model_adapters._shared.options import Amount, Choosing, Count, Text

OPENAI = "https://api.openai.com/v1"


class ServedOptions(Choosing):
    """A model behind an OpenAI-compatible server."""

    model: Text
    """Model name on the server."""
    base_url: str = OPENAI
    """API address without ``/chat/completions``."""
    scorer: Literal["vqascore", "choice"] = "vqascore"
    """``vqascore`` (a score per pair, from log-probabilities) or ``choice`` (forced choices in words)."""
    api_key_env: Text = "OPENAI_API_KEY"
    """Environment variable with the key."""
    api_version: Text | None = None
    """API version of Azure, such as ``2024-10-21``; the key is then sent in the header ``api-key``."""
    concurrency: Count = 16
    """Number of concurrent requests."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Seconds to wait for an answer."""
    retries: Annotated[int, Field(ge=0)] = 8
    """Number of retries."""
    backoff: Amount = 0.5
    """Seconds before the first retry; doubles with each, up to a minute."""
    cache: Text | None = None
    """File of stored answers (default: in the user's cache folder)."""
    max_cost: Amount | None = None
    """Maximum cost of a run; needs both prices."""
    price_in: Amount | None = None
    """Price per million input tokens."""
    price_out: Amount | None = None
    """Price per million output tokens."""
    image_size: Count | None = 512
    """Longest side of an image in pixels; larger images are shrunk, ``none`` keeps them."""
    image_format: Literal["jpeg", "png"] = "jpeg"
    """Encoding of images: ``jpeg`` or ``png``."""
    detail: Text | None = "high"
    """Image detail requested from the server; ``none`` omits it."""
    temperature: float | None = 0.0
    """Sampling temperature of the request; ``none`` omits it."""
    top_logprobs: Count = 20
    """Number of listed tokens for VQAScore; reduced if the server refuses it."""
    chat_template_kwargs: dict[str, object] | None = None
    """Variables of the chat template for vLLM and SGLang, such as ``chat_template_kwargs.enable_thinking=false``."""
    score_as: Literal["log_odds", "probability", "yes_token"] = "log_odds"
    """Score of VQAScore: ``log_odds`` of yes, its ``probability``, or ``yes_token``, the probability of the token
    "Yes" alone.
    """
    on_refusal: Literal["error", "wrong"] | None = None
    """Groups with a pair without VQAScore: ``error`` (default), or ``wrong`` to count them as incorrect."""
    batch_requests: Text | None = None
    """Write the questions into this file of OpenAI's batch API instead of asking them."""
    batch_answers: Text | None = None
    """Read answers from a batch's output: a file, or a folder of such files."""
    offline: bool = False
    """Use stored answers only."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.max_cost is not None and (self.price_in is None or self.price_out is None):
            raise ValueError("max_cost needs price_in and price_out: what a million tokens cost")
        if self.max_cost is not None and self.batch_requests is not None:
            raise ValueError("max_cost limits what is asked here; limit a batch (batch_requests) at its provider")
        if self.scorer == "choice" and self.on_refusal is not None:
            raise ValueError("on_refusal is for scorer=vqascore; in forced choices a refusal is a wrong answer")
        return self
