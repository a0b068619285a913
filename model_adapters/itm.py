"""Image-text matching heads: the score is the logit of a match minus that of no match, or the one logit of ViLT.

The image is encoded once, whatever the number of its captions, except by BridgeTower. Inputs are those that the heads
were trained on, which for BLIP and BLIP-2 differ from transformers' forward: captions are cut after 35 and 32 tokens,
and BLIP's begin with [ENC] (LAVIS, ``blip_image_text_matching.py`` and ``blip2_image_text_matching.py``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch.nn import functional

from ttmbench.errors import UsageError
from ttmbench.model import Batch, Prepared
from ttmbench.model_adapters._shared.contrastive import PIXELS, longer_than, normalised, on_device
from ttmbench.model_adapters._shared.options import HubModel, ItmOptions, takes
from ttmbench.model_adapters._shared.pair_model import TrainablePairModel, full_precision
from ttmbench.model_adapters._shared.pretrained import (
    PROBES,
    LoadedModel,
    as_text,
    captions_read,
    find,
    load_part,
    load_whole,
    locate,
)
from ttmbench.model_adapters.hf import UNSCALED, scale_and_size

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

__all__ = ["MatchingModel", "load", "locate"]
Kind = TypeVar("Kind")


@takes(ItmOptions)
def load(asked: ItmOptions) -> MatchingModel:
    """Loads a model with a matching head from the Hub or a folder; errors as for `hf.load`."""
    loaded, adapter = load_family(asked, FAMILIES, "matching head")
    if asked.itm_start is not None and adapter is not BlipMatching:
        raise UsageError(f"itm_start={asked.itm_start}: BLIP has enc or cls, other models have one start alone")
    return adapter(loaded, asked)


CLASSES = {
    "blip": "BlipForImageTextRetrieval",
    "blip-2": "Blip2ForImageTextRetrieval",
    "flava": "FlavaForPreTraining",
    "vilt": "ViltForImageAndTextRetrieval",
    "bridgetower": "BridgeTowerForImageAndTextRetrieval",
}
"""Of transformers, by ``model_type``."""


def load_family(asked: HubModel, readers: Mapping[str, type[Kind]], part: str) -> tuple[LoadedModel, type[Kind]]:
    """Loads a model of a family in `CLASSES`, and what reads it, by ``model_type``; UsageError for another family."""
    import transformers

    pretrained = find(asked)
    family = load_part(transformers.AutoConfig, pretrained).model_type
    if family not in readers:
        raise UsageError(
            f"{asked.pretrained} is of type '{family}', whose {part} is not known; known: {', '.join(readers)}"
        )
    return load_whole(getattr(transformers, CLASSES[family]), pretrained), readers[family]


class MatchingModel(TrainablePairModel):
    """A matching head as an adapter; subclasses know one architecture."""

    trained_tokens: int | None = None
    one_size: bool = True  # whether preprocessing makes images of one size

    def __init__(self, loaded: LoadedModel, asked: ItmOptions) -> None:
        super().__init__(loaded, asked)
        self.tokenizer, self.special_tokens = as_text(loaded.tokenizer)
        self.image_processor = loaded.image_processor
        self.max_tokens = caption_tokens(asked.max_tokens, self.trained_tokens, self.model.config, self.tokenizer)
        if self.one_size:
            self._scale, _ = scale_and_size(self.image_processor, self.device)
        full_precision(self._head())
        read = caption_inputs(self.tokenizer, PROBES, self.max_tokens)["input_ids"]
        self._declared["captions"] = captions_read(read, None, "longest", self.max_tokens, self.special_tokens)

    def fingerprint(self) -> Mapping[str, object]:
        """As for every pair model, and what else changes a score."""
        return {
            **super().fingerprint(),
            "score": "matching logit minus non-matching logit" if self._head().out_features == 2 else "matching logit",
            "max_tokens": self.max_tokens,
            "image_processor": type(self.image_processor).__name__,
        }

    def prepare_images(self, images: Sequence[Image]) -> Batch:
        """The model's own preprocessing: uint8 pixels still to be normalised, where the preprocessing allows that."""
        options = {} if self._scale is None else UNSCALED
        pixels: torch.Tensor = self.image_processor(images=list(images), return_tensors="pt", **options)[PIXELS]
        return pixels

    def prepare_captions(self, captions: Sequence[str]) -> dict[str, torch.Tensor]:
        """Tokens, padded to the longest caption; attention never looks at padding."""
        return caption_inputs(self.tokenizer, captions, self.max_tokens)

    def truncated(self, captions: Sequence[str]) -> list[bool]:
        """Which captions have more tokens than the text encoder is given."""
        lengths = self.prepare_captions(captions)["attention_mask"].sum(dim=1)
        return longer_than(self.tokenizer, captions, lengths.tolist())

    def encode_images(self, prepared: Prepared) -> torch.Tensor:
        """States of the vision encoder that text attends to, [images, tokens, width]."""
        self.model.eval()
        return self._states(prepared)

    def score_prepared(self, images: torch.Tensor, captions: dict[str, torch.Tensor]) -> np.ndarray:
        """Matching logit minus non-matching logit, float32 [pairs]."""
        logits = self._logits(images, captions)
        return (logits[:, 1] - logits[:, 0]).cpu().numpy()

    def pair_loss(self, images: Prepared, captions: dict[str, torch.Tensor], matched: np.ndarray) -> torch.Tensor:
        """Cross-entropy of the head, as image-text matching is trained; UsageError in fp16."""
        self.check_trainable()
        self.model.train()
        truth = torch.from_numpy(matched.astype(np.int64)).to(self.device, non_blocking=True)
        return functional.cross_entropy(self._logits(self._states(images), captions), truth)

    def _head(self) -> torch.nn.Linear:
        """The last layer, with two outputs (no match, match), or one (match)."""
        return self.model.itm_head

    def _encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalised pixels -> states of the vision encoder."""
        return self.model.vision_model(pixel_values=pixels).last_hidden_state

    @abstractmethod
    def _match(self, states: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Logits of the head [pairs, 2], or [pairs, 1], to which the logit of no match is 0."""

    def _states(self, prepared: Prepared) -> torch.Tensor:
        with self.arithmetic():
            return self._encode(normalised(on_device(prepared, self.device), self._scale))

    def _logits(self, states: torch.Tensor, captions: dict[str, torch.Tensor]) -> torch.Tensor:
        length = int(captions["attention_mask"].sum(dim=1).max())
        tokens = {name: tensor[:, :length] for name, tensor in captions.items()}
        with self.arithmetic():
            logits = self._match(states, **on_device(tokens, self.device)).float()
        return logits if logits.shape[1] == 2 else functional.pad(logits, (1, 0))


class BlipMatching(MatchingModel):
    """BLIP (arXiv:2201.12086): the text encoder attends to the image; the head reads its first state.

    The head was trained on the state of [ENC], a token of its own in the place of [CLS].
    """

    trained_tokens = 35

    def __init__(self, loaded: LoadedModel, asked: ItmOptions) -> None:
        super().__init__(loaded, asked)
        self.itm_start = asked.itm_start or "enc"
        self._start = self._enc() if self.itm_start == "enc" else None

    def fingerprint(self) -> Mapping[str, object]:
        """As for every matching head, and the first token of a caption."""
        return {**super().fingerprint(), "itm_start": self.itm_start}

    def prepare_captions(self, captions: Sequence[str]) -> dict[str, torch.Tensor]:
        """Tokens as for every matching head, of which the first is [ENC], or stays [CLS]."""
        tokens = super().prepare_captions(captions)
        if self._start is not None:
            tokens["input_ids"][:, 0] = self._start
        return tokens

    def _enc(self) -> int:
        """The id of [ENC]: Hub tokenizers are BERT's, which lack it; it follows [DEC], which is the model's bos."""
        known, text = self.tokenizer.get_vocab().get("[ENC]"), self.model.config.text_config
        token_id = int(text.bos_token_id) + 1 if known is None else int(known)
        if token_id >= text.vocab_size:
            raise UsageError(
                f"{self.name} has {text.vocab_size} tokens and no [ENC] among them; --model_args itm_start=cls begins "
                "captions with [CLS], on which BLIP's own heads were not trained"
            )
        return token_id

    def _match(self, states: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        text = self.model.text_encoder(input_ids=input_ids, attention_mask=attention_mask, encoder_hidden_states=states)
        return self.model.itm_head(text.last_hidden_state[:, 0, :])


class Blip2Matching(MatchingModel):
    """BLIP-2 (arXiv:2301.12597): query tokens and text attend to each other; the queries' logits are averaged."""

    trained_tokens = 32

    def _match(self, states: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        queries = self.model.query_tokens.expand(len(states), -1, -1)
        count = queries.shape[1]
        seen = torch.ones(len(states), count, dtype=torch.long, device=states.device)
        joint = self.model.qformer(
            query_embeds=self.model.embeddings(input_ids=input_ids, query_embeds=queries),
            query_length=count,
            attention_mask=torch.cat([seen, attention_mask], dim=1),
            encoder_hidden_states=states,
        )
        return self.model.itm_head(joint.last_hidden_state[:, :count, :]).mean(dim=1)


class FlavaMatching(MatchingModel):
    """FLAVA (arXiv:2112.04482): a multimodal encoder over both modalities' states; the head reads its first state."""

    def _head(self) -> torch.nn.Linear:
        return self.model.itm_head.seq_relationship

    def _encode(self, pixels: torch.Tensor) -> torch.Tensor:
        flava = self.model.flava
        image = flava.image_model(pixel_values=pixels, output_hidden_states=True, return_dict=True)
        return flava.image_to_mm_projection(image.hidden_states[-1])  # before the final norm, as FlavaModel takes it

    def _match(self, states: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        flava = self.model.flava
        text = flava.text_model(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True, return_dict=True
        )
        words = flava.text_to_mm_projection(text.hidden_states[-1])
        image_tokens = states.shape[1] + int(flava.multimodal_model.use_cls_token)
        seen = torch.ones(len(states), image_tokens, device=states.device)
        mask = torch.cat([seen, attention_mask], dim=1)
        joint = flava.multimodal_model(torch.cat([states, words], dim=1), attention_mask=mask, return_dict=True)
        return self.model.itm_head(joint.last_hidden_state)


class ViltMatching(MatchingModel):
    """ViLT (arXiv:2102.03334): one encoder over text and patches; the head's one logit ranks pairs."""

    one_size = False

    def _head(self) -> torch.nn.Linear:
        return self.model.rank_output

    def prepare_images(self, images: Sequence[Image]) -> list[torch.Tensor]:
        """The model's own preprocessing of each image, which keeps its shape: pixels [1, channels, height, width]."""
        return [self.image_processor(images=[image], return_tensors="pt")[PIXELS] for image in images]

    def _states(self, prepared: Prepared) -> torch.Tensor:
        """Patch embeddings [images, patches, width + 1], padded; the last entry is 1 where there is a patch.

        The library shuffles patches by the generator of the process, or draws some of them if ``max_image_length`` is
        positive; here that is the same in every pass.
        """
        embed, longest = self.model.vilt.embeddings.visual_embed, self.model.config.max_image_length
        rows = []
        with self.arithmetic(), torch.random.fork_rng(devices=[]):
            for image in prepared:
                torch.default_generator.manual_seed(0)
                pixels = on_device(image, self.device)
                seen = torch.ones_like(pixels[:, 0], dtype=torch.long)
                states, mask, _ = embed(pixels, seen, max_image_length=longest)
                rows.append(torch.cat([states[0], mask[0, :, None].to(states.dtype)], dim=1))
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def _match(self, states: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            image_embeds=states[..., :-1],
            pixel_mask=states[..., -1].long(),
        ).logits


class BridgeTowerMatching(MatchingModel):
    """BridgeTower (arXiv:2206.08657): both encoders feed every layer of the cross-modal one; two poolers, one head."""

    trained_tokens = 50

    def _head(self) -> torch.nn.Linear:
        return self.model.itm_score.fc

    def _encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels  # the library has no pass from encoded images

    def _match(self, states: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, pixel_values=states).logits


FAMILIES = {
    "blip": BlipMatching,
    "blip-2": Blip2Matching,
    "flava": FlavaMatching,
    "vilt": ViltMatching,
    "bridgetower": BridgeTowerMatching,
}


def caption_tokens(
    asked: int | None, trained: int | None, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> int:
    """The longest caption in tokens: as asked, else as in training if known; UsageError for more than positions."""
    text = getattr(config, "qformer_config", config.get_text_config())
    most = min(int(text.max_position_embeddings), int(tokenizer.model_max_length))
    if asked is None:
        return min(most, trained or most)
    if not 3 <= asked <= most:
        raise UsageError(
            f"max_tokens={asked}: this model takes captions of 3 to {most} tokens, the two at its ends included"
        )
    return asked


def caption_inputs(
    tokenizer: PreTrainedTokenizerBase, captions: Sequence[str], max_tokens: int
) -> dict[str, torch.Tensor]:
    """Tokens and mask, cut after ``max_tokens`` and padded on the right to the longest caption."""
    tokens = tokenizer(
        list(captions),
        padding="longest",
        padding_side="right",
        max_length=max_tokens,
        truncation=True,
        return_tensors="pt",
    )
    return {name: tokens[name] for name in ("input_ids", "attention_mask")}
