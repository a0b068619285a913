"""The contrastive halves of BLIP, BLIP-2 and FLAVA: dual encoders, trained as CLIP is.

BLIP and BLIP-2 learn a temperature that their models of transformers do not keep. Their cosines are divided by 0.07,
where the training of both starts, unless ``temperature`` says otherwise; no metric depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.contrastive import caption_tokens
from ttmbench.model_adapters._shared.pretrained import find, load_config, load_part, load_weights, locate
from ttmbench.model_adapters.hf import TransformersModel

__all__ = ["load", "locate"]
TEMPERATURE = 0.07


def load(
    *,
    pretrained: str,
    revision: str | None = None,
    weights: str = "auto",
    temperature: float | None = None,
    max_tokens: int | None = None,
    attn_implementation: str | None = None,
    device: str = "auto",
    dtype: str = "fp32",
    compile: bool = False,
    offline: bool = False,
    trust_remote_code: bool = False,
) -> TransformersModel:
    """Loads the contrastive half of a model from the hub or a folder.

    Args:
        pretrained: hub id, or a folder that ``save_pretrained`` wrote.
        revision: commit, tag or branch on the hub.
        weights: ``auto``: safetensors, else a pickle, read as tensors alone; ``safetensors`` refuses pickles.
        temperature: what cosines are divided by (BLIP and BLIP-2: 0.07); FLAVA has its own.
        max_tokens: where captions are cut; by default as the model was trained (BLIP 35, BLIP-2 32, FLAVA its own).
        attn_implementation: ``eager`` or ``sdpa``; by default transformers chooses.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        dtype: of the towers' arithmetic; weights and scores are fp32 in any case.
        compile: run both towers through ``torch.compile``.
        offline: use what is on this machine only.
        trust_remote_code: run code that the hub repository ships.

    Returns:
        An adapter.

    Raises:
        DataError: the weights are out of reach, damaged, or have tensors missing.
        UsageError: the model has no contrastive half that is known here, or a temperature does not fit.
    """
    import transformers

    found = find(pretrained, revision, weights=weights, offline=offline, trust_remote_code=trust_remote_code)
    family = load_config(found).model_type
    if family not in FAMILIES:
        raise UsageError(
            f"{pretrained} is of type '{family}', whose contrastive half is not known; known: {', '.join(FAMILIES)}. "
            "A CLIP or SigLIP is for the model 'hf'"
        )
    if temperature is not None and (family == "flava" or not temperature > 0):
        raise UsageError(f"temperature={temperature}: FLAVA has its own, and it has to be positive for the others")
    kind, adapter = FAMILIES[family]
    model = load_weights(
        getattr(transformers, kind), found, attn_implementation=attn_implementation, unused=("image_codebook.",)
    )
    built = adapter(
        model,
        load_part(transformers.AutoTokenizer, found),
        load_part(transformers.AutoImageProcessor, found),
        name=pretrained,
        files=found.files,
        device=device,
        dtype=dtype,
        compile_towers=compile,
        max_tokens=max_tokens,
    )
    if temperature is not None:
        built.temperature = temperature
    return built


class ContrastiveHalf(TransformersModel):
    """What the three have in common."""

    temperature: float | None = TEMPERATURE
    trained_tokens: int | None = None

    def __init__(self, model: Any, tokenizer: Any, *parts: Any, max_tokens: int | None = None, **options: Any) -> None:
        super().__init__(model, tokenizer, *parts, **options)
        self.max_tokens = caption_tokens(max_tokens, self.trained_tokens, self._positions(), tokenizer)

    def fingerprint(self) -> Mapping[str, Any]:
        """As for other dual encoders, where captions are cut, and the temperature where it is none of the model's."""
        own = {} if self.temperature is None else {"temperature": self.temperature}
        return {**super().fingerprint(), "max_tokens": self.max_tokens, **own}

    def prepare_captions(self, captions: Sequence[str]) -> dict[str, torch.Tensor]:
        """Tokens padded on the right: it is the first state that is projected."""
        tokens = self.tokenizer(
            list(captions),
            padding="longest",
            padding_side="right",
            max_length=self._max_tokens(),
            truncation=True,
            return_tensors="pt",
        )
        return {name: tokens[name] for name in ("input_ids", "attention_mask")}

    def _max_tokens(self) -> int:
        return self.max_tokens

    def _positions(self) -> int:
        return int(self.model.config.text_config.max_position_embeddings)

    def _temperature(self) -> torch.Tensor:
        assert self.temperature is not None, "only FLAVA has its own"
        return torch.full((), 1 / self.temperature, device=self.device)

    def _bias(self) -> None:
        return None


class BlipContrastive(ContrastiveHalf):
    """BLIP (arXiv:2201.12086): projections of both encoders' first states."""

    trained_tokens = 35

    def _towers(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        model = self.model

        def image(pixel_values: torch.Tensor, **unused: Any) -> Any:
            return model.vision_proj(model.vision_model(pixel_values=pixel_values).last_hidden_state[:, 0, :])

        def text(input_ids: torch.Tensor, attention_mask: torch.Tensor, **unused: Any) -> Any:
            states = model.text_encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return model.text_proj(states[:, 0, :])

        return image, text


class Blip2Contrastive(ContrastiveHalf):
    """BLIP-2 (arXiv:2301.12597): each query token has its vector, and the one nearest to the caption counts."""

    trained_tokens = 32

    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """The largest cosine over query tokens, divided by the temperature; [images, captions]."""
        cosines = torch.einsum("iqd,cd->icq", image_features, caption_features).amax(dim=-1)
        return cosines * self._temperature()

    def _positions(self) -> int:
        return int(self.model.config.qformer_config.max_position_embeddings)

    def _towers(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        model = self.model

        def image(pixel_values: torch.Tensor, **unused: Any) -> Any:
            states = model.vision_model(pixel_values=pixel_values).last_hidden_state
            seen = torch.ones(states.shape[:-1], dtype=torch.long, device=states.device)
            queries = model.qformer(
                query_embeds=model.query_tokens.expand(len(states), -1, -1),
                encoder_hidden_states=states,
                encoder_attention_mask=seen,
            )
            return model.vision_projection(queries.last_hidden_state)

        def text(input_ids: torch.Tensor, attention_mask: torch.Tensor, **unused: Any) -> Any:
            states = model.qformer(
                query_embeds=model.embeddings(input_ids=input_ids), query_length=0, attention_mask=attention_mask
            )
            return model.text_projection(states.last_hidden_state[:, 0, :])

        return image, text


class FlavaContrastive(ContrastiveHalf):
    """FLAVA (arXiv:2112.04482): projections of both encoders' first states, and the model's own temperature."""

    temperature = None

    def _towers(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        flava = self.model.flava

        def image(pixel_values: torch.Tensor, **unused: Any) -> Any:
            return flava.image_projection(flava.image_model(pixel_values=pixel_values).last_hidden_state[:, 0, :])

        def text(input_ids: torch.Tensor, attention_mask: torch.Tensor, **unused: Any) -> Any:
            states = flava.text_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return flava.text_projection(states[:, 0, :])

        return image, text

    def _temperature(self) -> torch.Tensor:
        scale: torch.Tensor = self.model.flava.logit_scale.exp()
        return scale


FAMILIES: Mapping[str, tuple[str, type[ContrastiveHalf]]] = {
    "blip": ("BlipForImageTextRetrieval", BlipContrastive),
    "blip-2": ("Blip2ForImageTextRetrieval", Blip2Contrastive),
    "flava": ("FlavaForPreTraining", FlavaContrastive),
}
