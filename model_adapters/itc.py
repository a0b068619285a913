"""The contrastive halves of BLIP, BLIP-2 and FLAVA: dual encoders, trained as CLIP is.

BLIP and BLIP-2 learn a temperature that their models of transformers do not store. Their cosines are divided by 0.07,
where the training of both starts; no metric depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ttmbench.model_adapters._shared.contrastive import Tower
from ttmbench.model_adapters._shared.options import ItcOptions, takes
from ttmbench.model_adapters._shared.pretrained import locate
from ttmbench.model_adapters.hf import TransformersModel
from ttmbench.model_adapters.itm import caption_inputs, caption_tokens, load_family

__all__ = ["load", "locate"]
TEMPERATURE = 0.07


@takes(ItcOptions)
def load(asked: ItcOptions) -> ContrastiveHalf:
    """Loads the contrastive half of a model from the Hub or a folder; errors as for `hf.load`."""
    loaded, adapter = load_family(asked, FAMILIES, "contrastive half")
    return adapter(loaded, asked)


class ContrastiveHalf(TransformersModel):
    """A contrastive half as an adapter; subclasses know one architecture."""

    temperature: float | None = TEMPERATURE
    not_logits: str | None = "the temperature is not stored, 0.07 is assumed; use a matching head, as --model blip-itm"
    trained_tokens: int | None = None

    def _longest(self, asked: ItcOptions) -> int:
        return caption_tokens(asked.max_tokens, self.trained_tokens, self.model.config, self.tokenizer)

    def fingerprint(self) -> Mapping[str, object]:
        """As for other dual encoders, the longest caption, and the temperature where it is none of the model's."""
        extra = {} if self.temperature is None else {"temperature": self.temperature}
        return {**super().fingerprint(), "max_tokens": self.max_tokens, **extra}

    def prepare_captions(self, captions: Sequence[str]) -> dict[str, torch.Tensor]:
        """Tokens padded on the right: the first state is projected."""
        return caption_inputs(self.tokenizer, captions, self.max_tokens)

    def _scale_and_bias(self) -> tuple[torch.Tensor, None]:
        assert self.temperature is not None, "only FLAVA has its own"
        return torch.full((), 1 / self.temperature, device=self.device), None


class BlipContrastive(ContrastiveHalf):
    """BLIP (arXiv:2201.12086): projections of both encoders' first states."""

    trained_tokens = 35

    def _towers(self, model: Any) -> tuple[Tower, Tower]:
        def image(pixel_values: torch.Tensor, **unused: torch.Tensor) -> torch.Tensor:
            return model.vision_proj(model.vision_model(pixel_values=pixel_values).last_hidden_state[:, 0, :])

        def text(input_ids: torch.Tensor, attention_mask: torch.Tensor, **unused: torch.Tensor) -> torch.Tensor:
            states = model.text_encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return model.text_proj(states[:, 0, :])

        return image, text


class Blip2Contrastive(ContrastiveHalf):
    """BLIP-2 (arXiv:2301.12597): each query token has its vector, and the one nearest to the caption counts."""

    trained_tokens = 32
    vectors = "many"
    towers = (("vision", "query_tokens"), ("text", "embeddings."))

    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """The largest cosine over query tokens, divided by the temperature; [images, captions]."""
        cosines = torch.einsum("iqd,cd->icq", image_features, caption_features).amax(dim=-1)
        return cosines * self._scale_and_bias()[0]

    def _towers(self, model: Any) -> tuple[Tower, Tower]:
        def image(pixel_values: torch.Tensor, **unused: torch.Tensor) -> torch.Tensor:
            states = model.vision_model(pixel_values=pixel_values).last_hidden_state
            queries = model.qformer(
                query_embeds=model.query_tokens.expand(len(states), -1, -1), encoder_hidden_states=states
            )
            return model.vision_projection(queries.last_hidden_state)

        def text(input_ids: torch.Tensor, attention_mask: torch.Tensor, **unused: torch.Tensor) -> torch.Tensor:
            states = model.qformer(
                query_embeds=model.embeddings(input_ids=input_ids), query_length=0, attention_mask=attention_mask
            )
            return model.text_projection(states.last_hidden_state[:, 0, :])

        return image, text


class FlavaContrastive(ContrastiveHalf):
    """FLAVA (arXiv:2112.04482): projections of both encoders' first states, and the model's own temperature."""

    temperature = not_logits = None
    towers = (("flava.image",), ("flava.text",))

    def _towers(self, model: Any) -> tuple[Tower, Tower]:
        flava = model.flava

        def image(pixel_values: torch.Tensor, **unused: torch.Tensor) -> torch.Tensor:
            return flava.image_projection(flava.image_model(pixel_values=pixel_values).last_hidden_state[:, 0, :])

        def text(input_ids: torch.Tensor, attention_mask: torch.Tensor, **unused: torch.Tensor) -> torch.Tensor:
            states = flava.text_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return flava.text_projection(states[:, 0, :])

        return image, text

    def _scale_and_bias(self) -> tuple[torch.Tensor, None]:
        return self.model.flava.logit_scale.exp(), None


FAMILIES = {"blip": BlipContrastive, "blip-2": Blip2Contrastive, "flava": FlavaContrastive}
