"""VisualGPTScore (arXiv:2306.01879, Eq. 12): the mean log-likelihood of a caption's tokens, given the image.

P(t) is the mean likelihood over images (Eq. 13), which may be Gaussian noise (section 4 and appendix B).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from PIL import Image as Pillow
from PIL.Image import Image

from ttmbench.model_adapters._shared.contrastive import PIXELS, on_device
from ttmbench.model_adapters._shared.image_text import (
    ImageTextModel,
    PreparedImage,
    Row,
    SeenImage,
    load_image_text,
    refuse_chat_arguments,
    refuse_old_transformers,
)
from ttmbench.model_adapters._shared.options import VisualgptOptions, takes
from ttmbench.model_adapters._shared.pair_model import TrainablePairModel, full_precision
from ttmbench.model_adapters._shared.pretrained import LoadedModel, find, load_part, load_whole, locate

__all__ = ["CaptionModel", "load", "locate"]
NOISE_IMAGES = 3  # most benchmarks in appendix B; for Winoground it has 100, which the task's file says
AT_ONCE = 64  # captions per pass over a noise image
Tokens = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Draw = Callable[[Sequence[int]], torch.Tensor]
Images = TypeVar("Images")
Encoded = TypeVar("Encoded")
_OF_PRIOR = ("alpha", "prior", "noise_images", "noise_mean", "noise_std", "noise_seed")


@takes(VisualgptOptions)
def load(asked: VisualgptOptions) -> Captioner:
    """Loads a model in `FAMILIES` or with a chat template, from the Hub or a folder; errors as for `hf.load`."""
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

    pretrained = find(asked)
    kind = FAMILIES.get(load_part(AutoConfig, pretrained).model_type)
    if kind is None:
        return ChatCaptioner(load_image_text(pretrained, asked), asked)
    refuse_chat_arguments(asked)
    if kind.needs_processor:
        refuse_old_transformers()
    processor = load_part(AutoProcessor, pretrained) if kind.needs_processor else None
    return kind(load_whole(AutoModelForImageTextToText, pretrained, processor), asked)


class CaptionModel(TrainablePairModel, Generic[Images, Encoded]):
    """A model that writes captions, as an adapter; subclasses know one architecture."""

    prepares_in_threads = True

    def __init__(self, loaded: LoadedModel, asked: VisualgptOptions) -> None:
        super().__init__(loaded, asked)
        self.asked, self.prompt, self.end_token = asked, asked.prompt, asked.end_token
        self.alpha, self.prior, self.noise_images = float(asked.alpha), asked.prior, asked.noise_images
        self._priors: dict[tuple[int, str], float] = {}
        self._noise: list[Encoded] = []
        self._source = torch.Generator().manual_seed(asked.noise_seed)
        if self.alpha:
            self.untrainable = "log P(t) is subtracted once, and training changes it; use --model_args alpha=0"

    def fingerprint(self) -> Mapping[str, object]:
        """As for every pair model, the prompt, and how P(t) is subtracted."""
        return {
            **super().fingerprint(),
            "score": "mean log-likelihood of the caption's tokens",
            "prompt": self.declared_prompt(),
            "end_token": self.end_token,
            **{name: getattr(self.asked, name) for name in _OF_PRIOR},
            "noise_images": self.noise_images or f"of the task, else {NOISE_IMAGES}",
        }

    def prepare_captions(self, captions: Sequence[str]) -> list[str]:
        """The captions: their tokens may depend on the image's prompt."""
        return list(captions)

    def encode_images(self, prepared: Images) -> Encoded:
        """The vision encoder's output, one row per image, on the device."""
        self.model.eval()
        with self.arithmetic():
            return self._see(prepared)

    def score_prepared(self, images: Encoded, captions: Sequence[str]) -> np.ndarray:
        """VisualGPTScore (Eq. 12) in logarithms: log P(t|i) per token, float32 [pairs]. P(t) is not subtracted here."""
        return self._log_likelihoods(images, captions).cpu().numpy()

    def pair_loss(self, images: Images, captions: Sequence[str], matched: np.ndarray) -> torch.Tensor:
        """Binary cross-entropy of P = exp(score), a geometric mean of token probabilities; UsageError in fp16.

        Of pairs that match it is -log P, with which captioners are trained; of others -log(1 - P), the unlikelihood
        of the caption (arXiv:1908.04319), which only matters once P is large.
        """
        self.check_trainable()
        self.model.train()
        with self.arithmetic():
            seen = self._see(images)
        likely = self._log_likelihoods(seen, captions)
        unlikely = torch.log(-torch.expm1(likely.clamp(max=-1e-6)))
        return -torch.where(torch.from_numpy(matched).to(self.device), likely, unlikely).mean()

    def log_priors(self, captions: Sequence[str], noise_images: int | None = None) -> np.ndarray:
        """Gives log P(t): the mean of P(t|i) over noise images (Eq. 13), once a caption; float32 [captions]."""
        count = self.noise_images or noise_images or NOISE_IMAGES
        new = [caption for caption in dict.fromkeys(captions) if (count, caption) not in self._priors]
        if new:
            with torch.inference_mode():
                log_probs = np.stack([self._given(noise, new) for noise in self._noise_images(count)])
            means = np.logaddexp.reduce(log_probs, axis=0) - np.log(count)
            self._priors.update({(count, caption): mean for caption, mean in zip(new, means.tolist(), strict=True)})
        return np.array([self._priors[count, caption] for caption in captions], dtype=np.float32)

    def _log_likelihoods(self, images: Encoded, captions: Sequence[str]) -> torch.Tensor:
        """Log P(t|i) per token, float32 [pairs]."""
        with self.arithmetic():
            logits, targets, rows = self._next_tokens(images, captions)
        tokens = logits.float().log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]
        total = torch.zeros(len(captions), device=tokens.device).index_add(0, rows, tokens)
        return total / torch.bincount(rows, minlength=len(captions))

    def declared_prompt(self) -> str:
        """The text before the caption, for the fingerprint."""
        return self.prompt

    @abstractmethod
    def prepare_images(self, images: Sequence[Image]) -> Images:
        """The model's own preprocessing, one row per image, on the CPU."""

    @abstractmethod
    def _see(self, prepared: Images) -> Encoded:
        """Prepared images -> states that the decoder attends to."""

    @abstractmethod
    def _next_tokens(self, images: Encoded, captions: Sequence[str]) -> Tokens:
        """Logits of every caption token [tokens, vocabulary], the tokens, and which pair each belongs to."""

    @abstractmethod
    def _with_pixels(self, prepared: Images, draw: Draw) -> Images:
        """One prepared image with other pixels; ``draw`` makes them from a shape."""

    @abstractmethod
    def _repeated(self, encoded: Encoded, count: int) -> Encoded:
        """One encoded image, repeated as rows."""

    def _noise_images(self, count: int) -> list[Encoded]:
        """Encoded noise images: a larger number begins with those of a smaller one."""

        def draw(shape: Sequence[int]) -> torch.Tensor:
            noise = torch.randn(tuple(shape), generator=self._source)
            return noise * self.asked.noise_std + self.asked.noise_mean

        while len(self._noise) < count:
            blank = self.prepare_images([Pillow.new("RGB", (336, 336), (127, 127, 127))])
            self._noise.append(self.encode_images(self._with_pixels(blank, draw)))
        return self._noise[:count]

    def _given(self, image: Encoded, captions: Sequence[str]) -> np.ndarray:
        """Gives log P(t|i) of many captions for one encoded image, float64 [captions]."""
        parts = []
        for start in range(0, len(captions), AT_ONCE):
            batch = list(captions[start : start + AT_ONCE])
            parts.append(self.score_prepared(self._repeated(image, len(batch)), batch))
        return np.concatenate(parts).astype(np.float64)


class _FixedImages(CaptionModel[torch.Tensor, torch.Tensor]):
    """A captioner with images of one size and a tokenizer of its own, which reads image and text or translates one."""

    needs_processor = False

    def __init__(self, loaded: LoadedModel, asked: VisualgptOptions) -> None:
        super().__init__(loaded, asked)
        self.tokenizer, self.image_processor = loaded.tokenizer, loaded.image_processor
        full_precision(self._head())

    def _head(self) -> torch.nn.Linear:
        return self.model.get_output_embeddings()

    def prepare_images(self, images: Sequence[Image]) -> torch.Tensor:
        """The model's own preprocessing: normalised pixels [images, channels, height, width]."""
        return self.image_processor(images=list(images), return_tensors="pt")[PIXELS]

    def _pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        return on_device(pixels, self.device).to(self.model.dtype)

    def _repeated(self, encoded: torch.Tensor, count: int) -> torch.Tensor:
        return encoded.expand(count, *encoded.shape[1:])

    def _with_pixels(self, prepared: torch.Tensor, draw: Draw) -> torch.Tensor:
        return draw(prepared.shape)

    def _tokens(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, attention mask and which tokens are a text's own (not put around it), padded on the right."""
        tokens = self.tokenizer(
            list(texts), padding="longest", padding_side="right", return_special_tokens_mask=True, return_tensors="pt"
        ).to(self.device)
        return tokens["input_ids"], tokens["attention_mask"], tokens["special_tokens_mask"] == 0

    def _next_tokens(self, images: torch.Tensor, captions: Sequence[str]) -> Tokens:
        texts, before = list(captions), 0
        if self.prompt:
            texts, before = ([f"{self.prompt} {text}" for text in texts], int(self._tokens([self.prompt])[2].sum()))
        ids, seen, is_text = self._tokens(texts)
        first = int(is_text[0].int().argmax())  # tokens that are put before a text
        scored = is_text & (torch.arange(ids.shape[1], device=ids.device) >= first + before)
        logits = self._logits(images, ids, seen)
        # A token is predicted at the position before it, the first one maybe at the image's last.
        return self._chosen(logits, ids, seen, scored, logits.shape[1] - ids.shape[1] - 1)

    def _translated(self, captions: Sequence[str], **source: object) -> Tokens:
        """`_next_tokens` of an encoder-decoder, which reads ``source`` and writes the captions."""
        ids, seen, is_text = self._tokens(captions)
        start = torch.full_like(ids[:, :1], self.model.config.text_config.decoder_start_token_id)
        logits = self._writer(
            **source,
            decoder_input_ids=torch.cat([start, ids[:, :-1]], dim=1),
            decoder_attention_mask=torch.cat([torch.ones_like(start), seen[:, :-1]], dim=1),
        ).logits
        return self._chosen(logits, ids, seen, is_text, 0)

    @property
    def _writer(self) -> Callable[..., Any]:
        """The encoder-decoder."""
        return self.model

    def _chosen(
        self, logits: torch.Tensor, ids: torch.Tensor, seen: torch.Tensor, scored: torch.Tensor, shift: int
    ) -> Tokens:
        """What is scored; logits ``shift`` positions after a token predict it. The last token of a row ends it."""
        if self.end_token:
            scored = scored | (torch.arange(ids.shape[1], device=ids.device) == seen.sum(dim=1, keepdim=True) - 1)
        rows, places = scored.nonzero(as_tuple=True)
        return logits[rows, places + shift], ids[rows, places], rows

    def _logits(self, images: torch.Tensor, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Next-token logits of texts, maybe behind those of image positions, [texts, positions, vocabulary]."""
        raise NotImplementedError


class BlipCaptioner(_FixedImages):
    """BLIP (arXiv:2201.12086): a text decoder that attends to the image's states in every layer."""

    def _head(self) -> torch.nn.Linear:
        return self.model.text_decoder.get_output_embeddings()

    def _see(self, prepared: torch.Tensor) -> torch.Tensor:
        return self.model.vision_model(pixel_values=self._pixels(prepared)).last_hidden_state

    def _logits(self, images: torch.Tensor, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        # Decoding starts with the decoder's own first token where the tokenizer puts [CLS].
        ids = torch.cat([torch.full_like(ids[:, :1], self.model.config.text_config.bos_token_id), ids[:, 1:]], dim=1)
        return self.model.text_decoder(input_ids=ids, attention_mask=seen, encoder_hidden_states=images).logits


class GitCaptioner(_FixedImages):
    """GIT (arXiv:2205.14100): a decoder over the image's states and the text, which are read in one pass."""

    def _see(self, prepared: torch.Tensor) -> torch.Tensor:
        return self._pixels(prepared)  # the library has no pass from encoded images

    def _repeated(self, encoded: torch.Tensor, count: int) -> torch.Tensor:
        return encoded  # one image is encoded once for all texts of a pass

    def _logits(self, images: torch.Tensor, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=seen, pixel_values=images).logits


class Kosmos2Captioner(_FixedImages):
    """Kosmos-2 (arXiv:2306.14824): a language model that reads an image's latent queries between two marks."""

    needs_processor = True

    def _see(self, prepared: torch.Tensor) -> torch.Tensor:
        return self.model.get_image_features(self._pixels(prepared), return_dict=True).pooler_output

    def _tokens(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As of other captioners, behind the image's mark, its placeholders and the mark of its end."""
        words, count = self.tokenizer, int(self.model.config.latent_query_num)
        ahead = f"{words.bos_token}{' '.join(['<image>'] * (count + 1))} </image>"
        rows = [f"{ahead} {text}{words.eos_token}" for text in texts]
        tokens = words(rows, padding="longest", padding_side="right", add_special_tokens=False, return_tensors="pt")
        ids, seen = tokens["input_ids"].to(self.device), tokens["attention_mask"].to(self.device)
        place = torch.arange(ids.shape[1], device=ids.device)
        return ids, seen, (place >= count + 3) & (place < seen.sum(dim=1, keepdim=True) - 1)

    def _logits(self, images: torch.Tensor, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        place = torch.arange(ids.shape[1], device=ids.device)
        of_image = ((place >= 2) & (place < 2 + images.shape[1])).expand_as(ids)
        return self.model(
            input_ids=ids, attention_mask=seen, image_embeds=images.contiguous(), image_embeds_position_mask=of_image
        ).logits


class Florence2Captioner(_FixedImages):
    """Florence-2 (arXiv:2311.06242): an encoder over image and prompt, once an image, and a decoder for captions."""

    needs_processor = True

    def declared_prompt(self) -> str:
        """The text that the encoder reads behind the image; without one the task of a short caption."""
        return self.prompt or "<CAPTION>"

    def _see(self, prepared: torch.Tensor) -> torch.Tensor:
        blank = Pillow.new("RGB", (32, 32))
        ids = self.loaded.processor(text=self.declared_prompt(), images=blank, return_tensors="pt")["input_ids"]
        ids = ids.to(self.device).expand(len(prepared), -1)
        return self.model.model(
            input_ids=ids, pixel_values=self._pixels(prepared), attention_mask=torch.ones_like(ids)
        ).encoder_last_hidden_state

    def _next_tokens(self, images: torch.Tensor, captions: Sequence[str]) -> Tokens:
        from transformers.modeling_outputs import BaseModelOutput

        mask = torch.ones(images.shape[:2], dtype=torch.long, device=self.device)
        return self._translated(captions, encoder_outputs=BaseModelOutput(images), attention_mask=mask)


class Blip2Captioner(_FixedImages):
    """BLIP-2 (arXiv:2301.12597): a language model that reads the Q-Former's states before the text."""

    def _see(self, prepared: torch.Tensor) -> torch.Tensor:
        return self.model.get_image_features(self._pixels(prepared), return_dict=True).pooler_output

    def _next_tokens(self, images: torch.Tensor, captions: Sequence[str]) -> Tokens:
        if self.model.config.use_decoder_only_language_model:
            return super()._next_tokens(images, captions)
        ids, seen, _ = super()._tokens([self.prompt] * len(captions))
        states, mask = self._behind_image(images, ids, seen)
        return self._translated(captions, inputs_embeds=states, attention_mask=mask)

    @property
    def _writer(self) -> Callable[..., Any]:
        return self.model.language_model

    def _tokens(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ids, seen, is_text = super()._tokens(texts)
        if not self.model.config.use_decoder_only_language_model:
            return ids, seen, is_text
        # The end, which these tokenizers put behind no text.
        length, room = seen.sum(dim=1, keepdim=True), torch.zeros_like(ids[:, :1])
        ids = torch.cat([ids, room], dim=1).scatter(1, length, self.tokenizer.eos_token_id)
        seen = torch.cat([seen, room], dim=1).scatter(1, length, 1)
        return ids, seen, torch.cat([is_text, room.bool()], dim=1)

    def _logits(self, images: torch.Tensor, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        states, mask = self._behind_image(images, ids, seen)
        return self.model.language_model(inputs_embeds=states, attention_mask=mask).logits

    def _behind_image(
        self, images: torch.Tensor, ids: torch.Tensor, seen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words = self.model.get_input_embeddings()(ids)
        return (
            torch.cat([images.to(words.dtype), words], dim=1),
            torch.cat([torch.ones(images.shape[:2], dtype=seen.dtype, device=seen.device), seen], dim=1),
        )


class ChatCaptioner(CaptionModel[list[PreparedImage], list[SeenImage]]):
    """A model with a chat template: the caption as what it says after the image."""

    def __init__(self, chat: ImageTextModel, asked: VisualgptOptions) -> None:
        super().__init__(chat.loaded, asked)
        self.chat = chat
        doubles = hasattr(getattr(chat.model.config, "vision_config", None), "temporal_patch_size")
        self._frames = int(getattr(chat.processor.image_processor, "temporal_patch_size", 1)) if doubles else 1

    def fingerprint(self) -> Mapping[str, object]:
        """As for every model that writes captions, and the frames of noise where a model takes films."""
        extra = {} if self._frames == 1 else {"noise_frames": f"{self._frames}, equal"}
        return {**super().fingerprint(), **self.chat.declared, **extra}

    def declared_prompt(self) -> str:
        """The whole prompt, as the template makes it."""
        return self.chat.before_caption(self.prompt)

    def prepare_images(self, images: Sequence[Image]) -> list[PreparedImage]:
        """The processor's own preprocessing of each image."""
        return self.chat.prepare(images)

    def _see(self, prepared: list[PreparedImage]) -> list[SeenImage]:
        return list(zip(prepared, self.chat.see(prepared), strict=True))

    def _repeated(self, encoded: list[SeenImage], count: int) -> list[SeenImage]:
        return encoded * count

    def _with_pixels(self, prepared: list[PreparedImage], draw: Draw) -> list[PreparedImage]:
        (image,) = prepared
        shape = image.features[PIXELS].shape
        if self._frames == 1:
            pixels = draw(shape)
        else:  # rows of patches, each (channels, frames, pixels): an image is shown as equal frames, so noise is too
            channels = len(self.chat.processor.image_processor.image_mean)
            frame = draw((shape[0], channels, 1, shape[1] // (channels * self._frames)))
            pixels = frame.expand(-1, -1, self._frames, -1).reshape(shape)
        return [replace(image, features={**image.features, PIXELS: pixels})]

    def _next_tokens(self, images: list[SeenImage], captions: Sequence[str]) -> Tokens:
        begun = [self._row(image, caption) for (image, _), caption in zip(images, captions, strict=True)]
        rows = [row for row, _ in begun]
        own = [row["input_ids"][start:] for row, start in begun]  # a caption's tokens
        # A token is predicted by the logits at the position before it.
        before = [torch.arange(start - 1, len(row["input_ids"]) - 1) for row, start in begun]
        logits = self.chat.logits([seen for _, seen in images], rows, before)
        targets = torch.cat(own)
        pairs = torch.repeat_interleave(torch.tensor([len(tokens) for tokens in own]))
        return logits, *(numbers.to(self.device, non_blocking=True) for numbers in (targets, pairs))

    def _row(self, image: PreparedImage, caption: str) -> tuple[Row, int]:
        """The prompt with the caption, and where the caption begins."""
        prompt = self.chat.row(image, self.chat.before_caption(self.prompt))
        whole = self.chat.with_caption(self.prompt, caption)
        ids = prompt["input_ids"]
        if whole is not None:
            row = self.chat.row(image, whole)
            shared = min(len(ids), len(row["input_ids"]) - 1)
            differs = (ids[:shared] != row["input_ids"][:shared]).nonzero()
            before = int(differs[0]) if len(differs) else shared
        else:
            tokens = self.chat.tokenizer(caption, add_special_tokens=False)["input_ids"]
            row, before = self.chat.continued(prompt, tokens), len(ids)
        if self.end_token:
            row = self.chat.continued(row, [self.chat.tokenizer.eos_token_id])
        return row, before


Captioner = _FixedImages | ChatCaptioner
FAMILIES: dict[str, type[_FixedImages]] = {
    "blip": BlipCaptioner,
    "blip-2": Blip2Captioner,
    "florence2": Florence2Captioner,
    "git": GitCaptioner,
    "kosmos-2": Kosmos2Captioner,
}
"""By ``model_type``; all others are asked by their chat template."""
