"""Generative models that see an image in their prompt, through transformers' processors and chat templates.

An image is preprocessed once, and encoded once a pass, with the tokens that all its prompts begin with. Rows of a batch
are padded on the right and masked: no token attends to a later one, so positions and answers are those of a row alone.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ttmbench._util.images import frames_of
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.chat_prompts import PREFIXES, ChatPrompts, Prompts
from ttmbench.model_adapters._shared.contrastive import on_device
from ttmbench.model_adapters._shared.encoded_images import EncodedImage, divided, together
from ttmbench.model_adapters._shared.options import ChatOptions
from ttmbench.model_adapters._shared.pair_model import full_precision
from ttmbench.model_adapters._shared.placement import pick_device, placement_of, settle, with_weights
from ttmbench.model_adapters._shared.pretrained import LoadedModel, Pretrained, load_config, load_part, load_weights
from ttmbench.model_adapters._shared.prompt_batches import (
    REUSES_PREFIX,
    Beginning,
    Parts,
    Row,
    beginning,
    by_prefix,
    padded,
)
from ttmbench.model_adapters._shared.repository import described

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import BatchFeature
    from transformers.image_processing_utils import BaseImageProcessor


_FILTERS = threading.Lock()  # filters of warnings are of the whole process: one thread at a time changes them
CHAT = "5.21"  # transformers before it ignores encoded images or a shared prefix, and scores something else
ACROSS = "cross_attention_mask"  # which tokens see an image that is not among them; it comes with each prompt
SEEN_TOGETHER = 16  # images of equal shape that the vision encoder gets at a time on an accelerator


@dataclass(eq=False)
class PreparedImage:
    """An image as a processor takes it.

    Attributes:
        image: the image; processors look at it even where its features are known.
        answer: output of the image processor.
        features: inputs of the model, with one row for the image.
        rows: tokens of each prompt that was shown with it.
        beginning: what its prompts begin with, where they can be made of it.
    """

    image: Image
    answer: BatchFeature | None
    features: dict[str, torch.Tensor]
    rows: dict[str, Row] = field(default_factory=dict)
    beginning: Beginning | None = None


SeenImage = tuple[PreparedImage, EncodedImage]


class PromptedModel(Prompts):
    """A model that answers a question about an image, and what encodes both.

    Args:
        loaded: model and processor.
        device: where to compute.
    """

    def __init__(self, loaded: LoadedModel, device: torch.device) -> None:
        self.device = settle(loaded.model, device)
        self.sees_together = 1 if self.device.type == "cpu" else SEEN_TOGETHER  # on a CPU it would only move rounding
        self.loaded, self.model, self.processor = loaded, loaded.model.eval(), loaded.processor
        self.tokenizer = loaded.tokenizer
        head = self.model.get_output_embeddings()
        if isinstance(head, torch.nn.Linear):
            full_precision(head)

    @property
    def declared(self) -> dict[str, object]:
        """Entries of a fingerprint beside those of every model."""
        return {}

    @abstractmethod
    def _encoded(self, images: Sequence[PreparedImage]) -> list[EncodedImage]:
        """Vision encoder and projection of images whose features have equal shapes."""

    def see(self, images: Sequence[PreparedImage]) -> list[EncodedImage]:
        """Vision encoder and projection of each image; an image that comes twice is encoded once."""
        known: dict[int, EncodedImage] = {}
        for alike in _alike(images, self.sees_together):
            known.update(zip(map(id, alike), self._encoded(alike), strict=True))
        return [known[id(image)] for image in images]


class ImageTextModel(ChatPrompts, PromptedModel):
    """An image-text-to-text model of transformers with a chat template, or one that needs none.

    Args:
        loaded: model and processor.
        device: where to compute.
        encodes: whether images will be encoded apart from prompts (`see`); generation does without.
    """

    def __init__(self, loaded: LoadedModel, device: torch.device, encodes: bool = True) -> None:
        super().__init__(loaded, device)
        self.kind: str = self.model.config.model_type
        self.tokens_read = 0  # by the language model so far, images' tokens among them
        self._core = getattr(self.model, "model", self.model)
        self._forward = set(inspect.signature(self.model.forward).parameters)
        self.architecture = type(self.model).__name__
        see = getattr(self._core, "get_image_features", None)
        self._of_image = set() if see is None else set(inspect.signature(see).parameters)
        self._is_encoded = "mm_encoder_outputs" in self._forward and see is not None
        if encodes and not self._is_encoded and ACROSS not in self._forward:
            instead = "--model choice" if self.processor.chat_template else "other code and `ttmbench score`"
            raise UsageError(
                f"{self.architecture} takes images neither encoded (mm_encoder_outputs) nor by cross-attention, so"
                f" it is not known which of its logits follow the text; use {instead}"
            )
        if self.kind not in (*REUSES_PREFIX, *PREFIXES):
            self.sees_together = 1  # how the encoder's output would be divided among images is not known
        self.check_prompts()
        self.tokenizer("?")  # leaves it without padding, so that no call in a thread changes it

    @property
    def declared(self) -> dict[str, object]:
        """Whether an image's tokens are computed once, which changes scores by rounding."""
        return {"image_prefix": "computed once"} if self.kind in REUSES_PREFIX else {}

    def continued(self, row: Row, ids: Sequence[int]) -> Row:
        """A prompt's tokens followed by tokens of the model's own text."""
        tokens = torch.tensor(ids, dtype=row["input_ids"].dtype)
        more = {name: value[-1:].expand(len(tokens), *value.shape[1:]) for name, value in row.items()}
        more["input_ids"] = tokens
        if self.kind in PREFIXES and "token_type_ids" in row:  # a prefix, whose tokens all see each other, ends before
            more["token_type_ids"] = torch.ones_like(tokens)
        return {name: torch.cat([value, more[name]]) for name, value in row.items()}

    def prepare(self, images: Sequence[Image]) -> list[PreparedImage]:
        """Preprocesses each image once, of a video its frames."""
        prepared = []
        for image in images:
            frames = frames_of(image)
            probe = self.ask("?", len(frames))  # every template takes an image with a question
            memory = _Memory(self.processor.image_processor, None)
            inputs = self.process(probe, frames, memory)
            of_text = self._of_text(inputs)
            features = {name: value for name, value in inputs.items() if name not in of_text}
            prepared.append(PreparedImage(image, memory.answer, features))
        return prepared

    def row(self, image: PreparedImage, prompt: str) -> Row:
        """A prompt's tokens for an image, with as many placeholders as the image has features.

        The processor makes the first row of an image; others are made of that and of the tokens of their text.
        """
        if prompt in image.rows:
            return image.rows[prompt]
        ids: list[int] = []
        if self.kind in REUSES_PREFIX:
            ids = self.tokenizer(prompt, **self.special_tokens(prompt))["input_ids"]
        row = None if image.beginning is None else image.beginning.followed_by(ids)
        if row is None:
            known = _Memory(self.processor.image_processor, image.answer)
            inputs = self.process(prompt, frames_of(image.image), known)
            row = {
                name: inputs[name][0] for name in self._of_text(inputs) if name in self._forward and name != "labels"
            }
            if ids:
                image.beginning = beginning(ids, row, self.model.config.image_token_id)
        image.rows[prompt] = row
        return row

    def process(self, prompt: str, images: Sequence[Image], instead: _Memory | None = None) -> BatchFeature:
        """Output of the model's own processor for a prompt and its images; ``instead`` of its image processor."""
        processor, shown = self.processor, list(images) if len(images) == 1 else [list(images)]  # all of one prompt
        if instead is not None:
            processor = copy(processor)  # other threads prepare images by it
            processor.image_processor = instead
        inputs = {"text": [prompt], "images": shown, "return_tensors": "pt", **self.special_tokens(prompt)}
        if type(processor).__name__ != "PaliGemmaProcessor":
            return processor(**inputs)
        with _FILTERS, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it copies tensors in an old way
            return processor(**inputs)

    def _of_text(self, inputs: BatchFeature) -> list[str]:
        """The names of what is said of each token of a prompt, which may have as many as an image has patches."""
        length = inputs["input_ids"].shape
        of_text = {name for name, value in inputs.items() if value.shape == length and name not in self._of_image}
        return [name for name in inputs if name in of_text or name in (ACROSS, "labels")]

    def _encoded(self, images: Sequence[PreparedImage]) -> list[EncodedImage]:
        inputs = {
            name: on_device(torch.cat([image.features[name] for image in images]), self.device)
            for name in images[0].features
        }
        dtype = self.model.dtype
        inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
        if not self._is_encoded:
            return [EncodedImage(None, inputs)]
        taken = self._of_image & set(inputs)
        with with_weights(self._core):
            output = self._core.get_image_features(**{name: inputs[name] for name in taken}, return_dict=True)
        beside = {name: value for name, value in inputs.items() if name.endswith(("grid_thw", "target_sizes"))}
        return divided(output, beside, len(images))

    def logits(self, seen: Sequence[EncodedImage], rows: Sequence[Row], keep: Sequence[torch.Tensor]) -> torch.Tensor:
        """Next-token logits. Without gradients, what several prompts of an image begin with is computed once.

        Args:
            seen: encoded images.
            rows: as many prompts.
            keep: after which tokens of each prompt the next one is asked for, ascending int [kept], on the CPU.

        Returns:
            float32 [all kept, vocabulary], row by row.
        """
        answers: dict[int, torch.Tensor] = {}
        parts: Parts = [(range(len(rows)), 0)]
        if self.kind in REUSES_PREFIX and not torch.is_grad_enabled():
            ids = [row["input_ids"] for row in rows]
            parts = by_prefix([id(image) for image in seen], ids, keep, self.model.config.image_token_id)
        for members, length in parts:
            images, prompts = [seen[at] for at in members], [rows[at] for at in members]
            kept = [keep[at] for at in members]
            found = self._after_prefix(images, prompts, kept, length) if length else self._whole(images, prompts, kept)
            answers.update(zip(members, found, strict=True))
        return torch.cat([answers[at] for at in range(len(rows))])

    def last_logits(self, seen: Sequence[EncodedImage], rows: Sequence[Row], count: int) -> torch.Tensor:
        """Next-token logits after the last ``count`` tokens of every row, float32 [rows, count, vocabulary]."""
        lengths = [len(row["input_ids"]) for row in rows]
        keep = [torch.arange(length - count, length) for length in lengths]
        return self.logits(seen, rows, keep).reshape(len(rows), count, -1)

    def _whole(
        self, seen: Sequence[EncodedImage], rows: Sequence[Row], keep: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """`logits` of each row, all of it computed."""
        return self._kept(keep, **self._padded(rows), **self._shown(seen), use_cache=False)

    def _after_prefix(
        self, seen: Sequence[EncodedImage], rows: Sequence[Row], keep: Sequence[torch.Tensor], length: int
    ) -> Sequence[torch.Tensor]:
        """`logits` of each row; the first ``length`` tokens, equal but for what is in the image, once an image."""
        first = {id(image): at for at, image in reversed(list(enumerate(seen)))}  # an image's first row
        number = {image: at for at, image in enumerate(first)}
        which = torch.tensor([number[id(image)] for image in seen])
        prefixes = [{name: value[:length] for name, value in rows[at].items()} for at in first.values()]
        last = {"logits_to_keep": 1} if "logits_to_keep" in self._forward else {}
        shown = self._shown([seen[at] for at in first.values()])
        begun = self.model(**self._padded(prefixes), **shown, **last, use_cache=True)
        if not getattr(self.model, "hf_device_map", None):  # else the layers' states lie on several devices
            which = which.to(self.device, non_blocking=True)
        cache = "cache" if "cache" in self._forward else "past_key_values"  # its name before transformers 5.24
        begun[cache].batch_select_indices(which)
        rest = self._padded([{name: row[name][length:] for name in ("input_ids", "attention_mask")} for row in rows])
        seen_before = torch.ones(len(rows), length, dtype=rest["attention_mask"].dtype, device=self.device)
        positions = torch.arange(length, length + rest["input_ids"].shape[1], device=self.device).expand(len(rows), -1)
        shift = getattr(self._core, "rope_deltas", None)  # where images' tokens have positions in two dimensions
        return self._kept(
            [kept - length for kept in keep],
            input_ids=rest["input_ids"],
            attention_mask=torch.cat([seen_before, rest["attention_mask"]], dim=1),
            position_ids=positions if shift is None else positions + shift[which],
            use_cache=True,
            **{cache: begun[cache]},
        )

    def _padded(self, rows: Sequence[Row]) -> Row:
        pad = self.tokenizer.pad_token_id or 0
        self.tokens_read += sum(len(row["input_ids"]) for row in rows)
        batch = padded(rows, lambda name: pad if name == "input_ids" else 0)
        return on_device(batch, self.device)

    def _shown(self, seen: Sequence[EncodedImage]) -> dict[str, object]:
        """Inputs of the model for encoded images."""
        beside = self._forward.intersection(seen[0].beside)
        about = {name: torch.cat([image.beside[name] for image in seen]) for name in beside}
        outputs = [image.output for image in seen if image.output is not None]
        return {**about, "mm_encoder_outputs": {"image": together(outputs)}} if outputs else dict(about)

    def _kept(self, keep: Sequence[torch.Tensor], **inputs: object) -> Sequence[torch.Tensor]:
        """Logits after some tokens of each row, float32 [kept, vocabulary] each. Indices: a mask has the host wait."""
        places = torch.nn.utils.rnn.pad_sequence(list(keep), batch_first=True).to(self.device, non_blocking=True)
        try:
            if "logits_to_keep" in self._forward:
                logits = self.model(**inputs, logits_to_keep=places).logits
            else:
                logits = torch.take_along_dim(self.model(**inputs).logits, places[..., None], dim=1)
        except AttributeError as error:  # Llama 4 of transformers 5.24 reads a field that its own output lacks
            raise own_forward_fails(self.architecture, error) from error
        return [row[: len(kept)].float() for row, kept in zip(logits, keep, strict=True)]


class _Memory:
    """An image processor that returns a known output, or remembers its first one."""

    def __init__(self, processor: BaseImageProcessor, answer: BatchFeature | None) -> None:
        self.own, self.answer = processor, answer

    def __call__(self, images: Sequence[Image], **options: object) -> BatchFeature:
        if self.answer is None:
            self.answer = self.own(images, **options)
        return copy(self.answer)  # processors take from it what the model does not want

    def __getattr__(self, name: str) -> object:
        return getattr(self.own, name)


def load_image_text(pretrained: Pretrained, asked: ChatOptions, *, encodes: bool = True) -> ImageTextModel:
    """An image-text-to-text model, whose images will be encoded apart from prompts if ``encodes``.

    Raises:
        DataError: the weights are unavailable or damaged, or transformers is too old.
        UsageError: the model cannot be asked about an image, or does not split or pad images.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor

    refuse_old_transformers()
    processor = load_part(AutoProcessor, pretrained)
    if not hasattr(processor, "image_processor") or not hasattr(processor, "tokenizer"):
        raise UsageError(f"{pretrained.name} has no processor for images and text")
    if asked.split_images is not None:
        names = [n for n in ("do_image_splitting", "crop_to_patches") if hasattr(processor.image_processor, n)]
        if not names:
            raise UsageError(f"{pretrained.name} does not split images; omit split_images")
        for name in names:
            setattr(processor.image_processor, name, asked.split_images)
    if asked.pad_images is not None:
        processor.image_processor = _padding(pretrained, processor.image_processor, asked.pad_images)
    model = load_weights(AutoModelForImageTextToText, pretrained, placement=placement_of(asked))
    loaded = LoadedModel(model, pretrained.files, processor.tokenizer, processor.image_processor, processor)
    chat = ImageTextModel(loaded, torch.device(pick_device(asked.device)), encodes)
    chat.template_kwargs = asked.chat_template_kwargs or {}
    return chat


def own_forward_fails(architecture: str, error: Exception) -> DataError:
    """The error to raise where transformers' own code of a model fails."""
    from transformers import __version__

    return DataError(
        f"{architecture} of transformers {__version__} fails in its own forward ({described(error)}); use another "
        "release of transformers, or serve the model and use --model openai"
    )


def refuse_old_transformers() -> None:
    """DataError for a release with which models that answer prompts score something else."""
    from packaging.version import Version
    from transformers import __version__

    if Version(__version__) < Version(CHAT):
        raise DataError(
            f"chat models need transformers {CHAT} or newer, not {__version__}: pip install -U transformers"
        )


def refuse_chat_arguments(asked: ChatOptions) -> None:
    """UsageError for arguments that models without a chat template do not take."""
    for name in ("split_images", "pad_images", "chat_template_kwargs"):
        if getattr(asked, name) is not None:
            raise UsageError(f"{asked.pretrained} has no chat template and does not tile or pad images; omit {name}")
    if placement_of(asked) is not None:
        raise UsageError(
            f"{asked.pretrained} has no chat template and is loaded whole, on one device: device_map and quantisation "
            "are for models with one"
        )


def _alike(images: Sequence[PreparedImage], most: int) -> list[list[PreparedImage]]:
    """The distinct images in lists of at most so many whose features have equal shapes."""
    by_shape: dict[object, list[PreparedImage]] = {}
    for image in {id(image): image for image in images}.values():
        by_shape.setdefault(tuple((name, value.shape) for name, value in image.features.items()), []).append(image)
    return [group[at : at + most] for group in by_shape.values() for at in range(0, len(group), most)]


def _padding(pretrained: Pretrained, processor: BaseImageProcessor, pad: bool) -> BaseImageProcessor:
    """LLaVA-1.5's image processor with the checkpoint's settings and this padding."""
    from transformers import LlavaImageProcessor

    if load_config(pretrained).model_type != "llava":
        raise UsageError(f"{pretrained.name} is not a LLaVA-1.5, and only its images are padded; omit pad_images")
    settings = processor.to_dict()
    for name in ("image_processor_type", "processor_class", "do_pad"):
        settings.pop(name, None)
    return LlavaImageProcessor(**settings, do_pad=pad)
