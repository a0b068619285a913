"""Generative models that see an image in their prompt, through transformers' processors and chat templates.

An image is preprocessed once and goes through the vision encoder once a pass. Rows of a batch are padded on the right
and masked: no token looks at what comes after it, so positions and answers are those of a row alone.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.options import ChatOptions
from ttmbench.model_adapters._shared.pair_model import full_precision
from ttmbench.model_adapters._shared.placement import Placement, pick_device, settle, with_weights
from ttmbench.model_adapters._shared.pretrained import Pretrained, describe_model, load_config, load_part, load_weights
from ttmbench.types import ModelFiles

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import BatchFeature, PreTrainedModel, ProcessorMixin
    from transformers.image_processing_utils import BaseImageProcessor
    from transformers.modeling_outputs import BaseModelOutputWithPooling

Row = dict[str, torch.Tensor]
"""Tokens of one prompt, each tensor [tokens]."""

ENCODED_SINCE = (5, 18)  # the first transformers whose models take ``mm_encoder_outputs``

# Models without a chat template: what stands before a question, and what asks for a caption.
PREFIXES = {"paligemma": ("answer en ", "caption en")}


@dataclass(eq=False)
class PreparedImage:
    """An image as a processor takes it.

    Attributes:
        image: the image; processors look at it even where its features are known.
        answer: what the image processor said of it.
        features: what the model takes, with one row for the image.
        rows: prompts that were tokenised for it.
    """

    image: Image
    answer: BatchFeature | None
    features: dict[str, torch.Tensor]
    rows: dict[str, Row] = field(default_factory=dict)


@dataclass(frozen=True)
class EncodedImage:
    """What the vision encoder gives of one image, as ``mm_encoder_outputs`` takes it, and the features beside it."""

    output: BaseModelOutputWithPooling
    beside: dict[str, torch.Tensor]


SeenImage = tuple[PreparedImage, EncodedImage]
"""An image with what the vision encoder gives of it."""


class ImageTextModel:
    """An image-text-to-text model of transformers with a chat template, and its processor.

    Args:
        model: the model.
        processor: of images and text.
        device: where to compute.
        encodes: whether images will be encoded apart from prompts (`see`); generation does without.
        files: what the weights were read from.
    """

    answer = "Yes"

    def __init__(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        device: torch.device,
        encodes: bool = True,
        files: ModelFiles | None = None,
    ) -> None:
        self.device = settle(model, device)
        self.model, self.processor, self.files = model.eval(), processor, files
        self.tokenizer = processor.tokenizer
        self.declared: dict[str, object] = {}
        self.kind: str = model.config.model_type
        self._core = getattr(model, "model", model)
        self._forward = set(inspect.signature(model.forward).parameters)
        head = model.get_output_embeddings()
        if isinstance(head, torch.nn.Linear):
            full_precision(head)
        if encodes and ("mm_encoder_outputs" not in self._forward or not hasattr(self._core, "get_image_features")):
            raise UsageError(_no_encoded_images(type(model).__name__))
        if not processor.chat_template and self.kind not in PREFIXES:
            raise UsageError(f"{type(model).__name__} has no chat template, so it is not known how to ask it")

    @property
    def beside(self) -> tuple[ProcessorMixin]:
        """What is saved beside the model."""
        return (self.processor,)

    def describe(self, device: torch.device) -> dict[str, object]:
        """What of it changes a score and is in no tensor."""
        return describe_model(self.model, device, processor=self.processor)

    def ask(self, question: str, images: int = 1) -> str:
        """The prompt that shows the images and asks: the model's next token begins its answer."""
        if not self.processor.chat_template:
            return f"{self.processor.image_token * images}{PREFIXES[self.kind][0]}{question}"
        return self._render(question, images=images)

    def before_caption(self, instruction: str) -> str:
        """The prompt that shows the image, after which a caption may follow."""
        if not self.processor.chat_template:
            return f"{self.processor.image_token}{instruction or PREFIXES[self.kind][1]}"
        return self._render(instruction)

    def with_caption(self, instruction: str, caption: str) -> str | None:
        """The same with the caption as the model's turn, left open; None where no template can say that."""
        if not self.processor.chat_template:
            return None
        try:
            return self._render(instruction, caption)
        except UsageError:
            return None

    def answer_ids(self, answer: str) -> list[int] | None:
        """The tokens of an answer where the model's turn begins with it; None if it changes the prompt's own tokens."""
        asked, whole = self.ask("?"), self.with_caption("?", answer)
        if whole is None:
            return [int(token) for token in self.tokenizer(answer, add_special_tokens=False)["input_ids"]]
        before, both = (self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (asked, whole))
        return [int(token) for token in both[len(before) :]] if both[: len(before)] == before else None

    def continued(self, row: Row, ids: Sequence[int]) -> Row:
        """A prompt's tokens with further ones behind them, which are seen as what the model itself writes."""
        own = torch.tensor(ids, dtype=row["input_ids"].dtype)
        more = {name: value[-1:].expand(len(own)) for name, value in row.items()} | {"input_ids": own}
        if self.kind in PREFIXES and "token_type_ids" in row:  # a prefix, whose tokens all see each other, ends before
            more["token_type_ids"] = torch.ones_like(own)
        return {name: torch.cat([value, more[name]]) for name, value in row.items()}

    def prepare(self, images: Sequence[Image]) -> list[PreparedImage]:
        """Preprocesses each image once."""
        prepared = []
        probe = self.ask("?")  # every template takes an image with a question
        for image in images:
            with self._remembering(None) as memory:
                inputs = self.process(probe, [image])
            length = inputs["input_ids"].shape
            features = {name: value for name, value in inputs.items() if value.shape != length and name != "labels"}
            prepared.append(PreparedImage(image, memory.answer, features))
        return prepared

    def row(self, image: PreparedImage, prompt: str) -> Row:
        """A prompt's tokens for an image, in which the image has as many places as its features need."""
        if prompt not in image.rows:
            with self._remembering(image.answer):
                inputs = self.process(prompt, [image.image])
            length = inputs["input_ids"].shape
            image.rows[prompt] = {
                name: value[0]
                for name, value in inputs.items()
                if value.shape == length and name in self._forward and name != "labels"
            }
        return image.rows[prompt]

    def process(self, prompt: str, images: Sequence[Image]) -> BatchFeature:
        """What the model's own processor makes of a prompt and the images that it shows."""
        bos = self.tokenizer.bos_token
        begun = {"add_special_tokens": False} if bos and prompt.startswith(bos) else {}  # else it would stand twice
        shown = list(images) if len(images) == 1 else [list(images)]  # a list in the list: all belong to one prompt
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # PaliGemma's processor copies tensors in an old way
            return self.processor(text=[prompt], images=shown, return_tensors="pt", **begun)

    def see(self, images: Sequence[PreparedImage]) -> list[EncodedImage]:
        """Vision encoder and projection of each image; an image that comes twice is encoded once."""
        taken = set(inspect.signature(self._core.get_image_features).parameters)
        known: dict[int, EncodedImage] = {}
        for image in images:
            if id(image) in known:
                continue
            inputs = {name: self._place(value) for name, value in image.features.items()}
            with with_weights(self._core):
                output = self._core.get_image_features(
                    **{name: value for name, value in inputs.items() if name in taken}, return_dict=True
                )
            kept = {
                name: getattr(output, name)
                for name in ("pooler_output", "deepstack_features")
                if getattr(output, name, None) is not None
            }
            beside = {name: value for name, value in inputs.items() if name.endswith("grid_thw")}
            known[id(image)] = EncodedImage(type(output)(**kept), beside)
        return [known[id(image)] for image in images]

    def logits(self, seen: Sequence[EncodedImage], rows: Sequence[Row], keep: Sequence[torch.Tensor]) -> torch.Tensor:
        """Next-token logits.

        Args:
            seen: encoded images.
            rows: as many prompts.
            keep: after which tokens of each prompt the next one is asked for, bool [tokens].

        Returns:
            float32 [all kept, vocabulary], row by row.
        """
        pad = self.tokenizer.pad_token_id or 0
        inputs = {
            name: value.to(self.device)
            for name, value in padded(rows, lambda name: pad if name == "input_ids" else 0).items()
        }
        mask = torch.nn.utils.rnn.pad_sequence(list(keep), batch_first=True).to(self.device)
        beside = {name: torch.cat([one.beside[name] for one in seen]) for name in seen[0].beside}
        options: dict[str, torch.Tensor] = {name: value for name, value in beside.items() if name in self._forward}
        if "logits_to_keep" in self._forward:
            options["logits_to_keep"] = mask
        output = self.model(**inputs, **options, mm_encoder_outputs={"image": _together(seen)}, use_cache=False)
        logits: torch.Tensor = output.logits if "logits_to_keep" in options else output.logits[mask]
        return logits.float()

    def last_logits(self, seen: Sequence[EncodedImage], rows: Sequence[Row], count: int) -> torch.Tensor:
        """Next-token logits after the last ``count`` tokens of every row, float32 [rows, count, vocabulary]."""
        keep = [torch.arange(len(row["input_ids"])) >= len(row["input_ids"]) - count for row in rows]
        return self.logits(seen, rows, keep).reshape(len(rows), count, -1)

    def _place(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.device, self.model.dtype if value.is_floating_point() else None, non_blocking=True)

    def _render(self, question: str, answer: str | None = None, images: int = 1) -> str:
        content: list[dict[str, str]] = [{"type": "image"} for _ in range(images)]
        if question:
            content.append({"type": "text", "text": question})
        turns: list[dict[str, object]] = [{"role": "user", "content": content}]
        if answer is not None:
            turns.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
        last = {"add_generation_prompt": True} if answer is None else {"continue_final_message": True}
        try:
            prompt: str = self.processor.apply_chat_template(turns, tokenize=False, **last)
        except Exception as error:  # templates are programs of their own, which may refuse in any way
            raise UsageError(f"the chat template of {type(self.model).__name__} cannot say this: {error}") from error
        return prompt

    @contextmanager
    def _remembering(self, answer: BatchFeature | None) -> Iterator[_Memory]:
        own = self.processor.image_processor
        memory = _Memory(own, answer)
        self.processor.image_processor = memory
        try:
            yield memory
        finally:
            self.processor.image_processor = own


class _Memory:
    """An image processor that gives a known answer, or keeps the one it gives."""

    def __init__(self, own: BaseImageProcessor, answer: BatchFeature | None) -> None:
        self.own, self.answer = own, answer

    def __call__(self, images: Sequence[Image], **options: object) -> BatchFeature:
        if self.answer is None:
            self.answer = self.own(images, **options)
        return copy(self.answer)  # processors take from it what the model does not want

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


def load_image_text(found: Pretrained, asked: ChatOptions, *, encodes: bool = True) -> ImageTextModel:
    """Loads an image-text-to-text model.

    Args:
        found: where from.
        asked: its arguments.
        encodes: whether images will be encoded apart from prompts, which not every model can.

    Returns:
        Model and processor.

    Raises:
        DataError: weights out of reach or damaged.
        UsageError: a model that cannot be asked about an image, or that cannot split or pad images.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = load_part(AutoProcessor, found)
    if not hasattr(processor, "image_processor") or not hasattr(processor, "tokenizer"):
        raise UsageError(f"{found.name} has no processor for images and text")
    if asked.split_images is not None:
        names = [n for n in ("do_image_splitting", "crop_to_patches") if hasattr(processor.image_processor, n)]
        if not names:
            raise UsageError(f"{found.name} does not split images; leave split_images out")
        for name in names:
            setattr(processor.image_processor, name, asked.split_images)
    if asked.pad_images is not None:
        processor.image_processor = _padding(found, processor.image_processor, asked.pad_images)
    model = load_weights(AutoModelForImageTextToText, found, placement=Placement.of(asked))
    return ImageTextModel(model, processor, torch.device(pick_device(asked.device)), encodes, files=found.files)


def refuse_chat_arguments(asked: ChatOptions) -> None:
    """UsageError for what models without a chat template do not take, which are loaded whole."""
    if asked.split_images is not None or asked.pad_images is not None:
        raise UsageError(f"{asked.pretrained} neither splits nor pads images; leave split_images and pad_images out")
    if Placement.of(asked) is not None:
        raise UsageError(
            f"{asked.pretrained} has no chat template and is loaded whole, on one device: device_map and quantisation "
            "are for models with one"
        )


def _no_encoded_images(name: str) -> str:
    """Why a model cannot be asked: transformers is too old for every model, or its code has no place for that."""
    from importlib.metadata import version

    here = version("transformers")
    if tuple(int(part) for part in here.split(".")[:2]) < ENCODED_SINCE:
        least = ".".join(map(str, ENCODED_SINCE))
        return (
            f"transformers {here} does not take encoded images, as {least} does: pip install -U 'transformers>={least}'"
        )
    return f"{name} does not take encoded images (get_image_features, mm_encoder_outputs) in transformers {here}"


def _padding(found: Pretrained, own: BaseImageProcessor, pad: bool) -> BaseImageProcessor:
    """An image processor of LLaVA-1.5 that pads or does not, with the settings of the checkpoint's own."""
    from transformers import LlavaImageProcessor

    if load_config(found).model_type != "llava":
        raise UsageError(f"{found.name} is no LLaVA-1.5, whose images alone are padded; leave pad_images out")
    settings = own.to_dict()
    for name in ("image_processor_type", "processor_class", "do_pad"):
        settings.pop(name, None)
    return LlavaImageProcessor(**settings, do_pad=pad)


def padded(rows: Sequence[Row], pad: Callable[[str], int]) -> Row:
    """Rows of several lengths as one tensor a name, [rows, tokens], filled up on the right with what ``pad`` says."""
    return {
        name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True, padding_value=pad(name))
        for name in rows[0]
    }


def _together(seen: Sequence[EncodedImage]) -> BaseModelOutputWithPooling:
    """Outputs of several images as if they had been encoded in one go."""
    first = seen[0].output
    joined: dict[str, object] = {"pooler_output": _joined([one.output.pooler_output for one in seen])}
    if getattr(first, "deepstack_features", None) is not None:
        layers = zip(*(one.output.deepstack_features for one in seen), strict=True)
        joined["deepstack_features"] = [_joined(layer) for layer in layers]
    return type(first)(**joined)


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(list(parts))
    return [tensor for part in parts for tensor in part]
