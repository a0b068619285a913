"""Generative models that see an image in their prompt, through transformers' processors and chat templates.

An image is preprocessed once, and encoded once a pass, with the tokens that all its prompts begin with. Rows of a batch
are padded on the right and masked: no token attends to a later one, so positions and answers are those of a row alone.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image as Pillow

from ttmbench._util.images import frames_of
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.contrastive import on_device
from ttmbench.model_adapters._shared.options import ChatOptions
from ttmbench.model_adapters._shared.pair_model import full_precision
from ttmbench.model_adapters._shared.pretrained import (
    LoadedModel,
    Pretrained,
    load_part,
    load_whole,
    pick_device,
    placement_of,
    settle,
    spread,
    with_weights,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import BatchFeature
    from transformers.image_processing_utils import BaseImageProcessor
    from transformers.utils import ModelOutput


CHAT = "5.21"  # transformers before it ignores encoded images or a shared prefix, and scores something else
ACROSS = "cross_attention_mask"  # which tokens see an image that is not among them; it comes with each prompt
Row = dict[str, torch.Tensor]
"""Tokens of one prompt, each tensor [tokens]."""

Parts = list[tuple[Sequence[int], int]]
"""Numbers of rows that are computed together, and how many tokens they begin with together; 0 for nothing shared."""

# Models without a chat template: the text before a question, and the request for a caption.
PREFIXES = {"paligemma": ("answer en ", "caption en")}
_SAME = (1e-3, 0.05)  # of the logits' deviation: rounding of float32, and of half precision through all layers
JOINED = "--model_args side_by_side=true joins them into one"
_PROBES = ("Is it a dog?", "What is on the left?")
_LAYERED = ("deepstack_features",)  # of each layer, and not of each image
_INNER = ("hidden_states", "attentions")  # of every layer of the vision encoder, which no language model takes


@dataclass(frozen=True)
class EncodedImage:
    """Output of the vision encoder for one image, and features; without an output these are the pixels."""

    output: ModelOutput | None
    beside: dict[str, torch.Tensor]


def together(outputs: Sequence[ModelOutput]) -> ModelOutput:
    """Outputs of several images as one batch."""
    if len(outputs) == 1:
        return outputs[0]
    fields = [{name: value for name, value in vars(output).items() if value is not None} for output in outputs]
    return type(outputs[0])(**{name: _joined([one[name] for one in fields], name in _LAYERED) for name in fields[0]})


def _joined(parts: Sequence[Any], is_layered: bool) -> Any:
    """Tensors one below the other; lists with an entry per image one after the other, those per layer by layer."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(list(parts)) if parts[0].ndim else parts[0]  # a loss of the encoder
    if isinstance(parts[0], list | tuple):
        if not is_layered:
            return [tensor for part in parts for tensor in part]
        return [_joined(layer, isinstance(layer[0], tuple)) for layer in zip(*parts, strict=True)]
    return parts[0]  # the number of a layer


def by_prefix(
    images: Sequence[Hashable], rows: Sequence[torch.Tensor], keep: Sequence[torch.Tensor], image_token: int
) -> Parts:
    """Parts of a batch by what its prompts share: images of one number of tokens, with the same text before them.

    ``rows`` are tokens int [tokens]; logits are asked for after tokens ``keep``, none of which is in what is shared.
    """
    of_image: dict[Hashable, list[int]] = {}
    for at, image in enumerate(images):
        of_image.setdefault(image, []).append(at)
    by_head: dict[tuple[int, ...], list[int]] = {}
    alone: list[int] = []
    for members in of_image.values():
        ids = rows[members[0]]
        head = tuple(ids[: int((ids == image_token).nonzero()[-1]) + 1].tolist())
        (by_head.setdefault(head, []) if len(members) > 1 else alone).extend(members)
    parts: Parts = []
    for head, members in by_head.items():
        length = min(_common([rows[at] for at in members]), *(int(keep[at][0]) for at in members))
        if length < len(head):
            alone += members
        else:
            parts.append((members, length))
    return [*parts, (sorted(alone), 0)] if alone else parts


def _common(rows: Sequence[torch.Tensor]) -> int:
    """How many tokens all rows begin with."""
    shortest = min(map(len, rows))
    differs = torch.stack([row[:shortest] != rows[0][:shortest] for row in rows]).any(dim=0).nonzero()
    return int(differs[0]) if len(differs) else shortest


def padded(rows: Sequence[Row], pad: Callable[[str], int]) -> Row:
    """Rows of several lengths as one tensor per name, [rows, tokens], padded on the right by ``pad(name)``."""
    pads = torch.nn.utils.rnn.pad_sequence
    return {name: pads([row[name] for row in rows], batch_first=True, padding_value=pad(name)) for name in rows[0]}


@dataclass(eq=False)
class PreparedImage:
    """An image, the output of its processor, and the model's inputs for it; ``rows`` are tokens of prompts with it."""

    image: Image
    answer: BatchFeature | None
    features: dict[str, torch.Tensor]
    rows: dict[str, Row] = field(default_factory=dict)


SeenImage = tuple[PreparedImage, EncodedImage]


class PromptedModel(ABC):
    """A model that answers a question about an image, and what encodes both."""

    answer = "Yes"  # as the model was taught to write it

    def __init__(self, loaded: LoadedModel, device: torch.device) -> None:
        self.device = settle(loaded.model, device)
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
    def ask(self, question: str, images: int = 1) -> str:
        """The prompt that shows the images and asks: the model's next token begins its answer."""

    @abstractmethod
    def with_caption(self, instruction: str, caption: str) -> str | None:
        """The prompt continued by the model's own text; None where the prompt cannot contain it."""

    def answer_ids(self, answer: str) -> list[int] | None:
        """The tokens of an answer where the model's turn begins with it; None if it changes the prompt's own tokens."""
        asked, whole = self.ask("?"), self.with_caption("?", answer)
        if whole is None:
            return [int(token) for token in self.tokenizer(answer, add_special_tokens=False)["input_ids"]]
        before, both = (self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (asked, whole))
        return [int(token) for token in both[len(before) :]] if both[: len(before)] == before else None

    @abstractmethod
    def _encoded(self, image: PreparedImage) -> EncodedImage:
        """Vision encoder and projection of an image."""

    def see(self, images: Sequence[PreparedImage]) -> list[EncodedImage]:
        """Vision encoder and projection of each image; an image that comes twice is encoded once."""
        known = {number: self._encoded(image) for number, image in {id(image): image for image in images}.items()}
        return [known[id(image)] for image in images]


class ImageTextModel(PromptedModel):
    """An image-text-to-text model of transformers with a chat template, or one that needs none.

    ``encodes``: whether images will be encoded apart from prompts (`see`); generation does without.
    """

    template_kwargs: Mapping[str, object] = MappingProxyType({})  # variables of the chat template

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
        if not self.processor.chat_template and self.kind not in PREFIXES:
            raise UsageError(f"{self.architecture} has no chat template, so it is not known how to ask it")
        self.tokenizer("?")  # leaves it without padding, so that no call in a thread changes it

    def ask(self, question: str, images: int = 1) -> str:
        """The prompt that shows the images and asks: the model's next token begins its answer."""
        if not self.processor.chat_template:
            return f"{self.processor.image_token * images}{PREFIXES[self.kind][0]}{question}"
        return self._render(question, images=images)

    def show_several(self, question: str, images: Sequence[Image]) -> BatchFeature:
        """Inputs of a prompt that shows the images and asks; UsageError if the model cannot be shown so many."""
        if len(images) == 1:
            return self.process(self.ask(question), images)
        why: object = "its chat template shows fewer"
        try:
            asked = self.ask(question, len(images))
            marks = asked.count(getattr(self.processor, "image_token", None) or "\0")
            if marks == len(images) if marks else asked != self.ask(question, len(images) - 1):
                return self.process(asked, images)
        except Exception as error:  # templates and processors refuse in many ways
            why = error
        raise UsageError(f"{self.architecture} cannot be shown {len(images)} images at once: {why}; {JOINED}")

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

    def special_tokens(self, prompt: str) -> dict[str, bool]:
        """Options of the tokenizer for a prompt: one that begins with the first token would get it twice."""
        bos = self.tokenizer.bos_token
        return {"add_special_tokens": False} if bos and prompt.startswith(bos) else {}

    def _render(self, question: str, answer: str | None = None, images: int = 1) -> str:
        content: list[dict[str, str]] = [{"type": "image"} for _ in range(images)]
        if question:
            content.append({"type": "text", "text": question})
        turns: list[dict[str, object]] = [{"role": "user", "content": content}]
        if answer is not None:
            turns.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
        last = {"add_generation_prompt": True} if answer is None else {"continue_final_message": True}
        try:
            prompt: str = self.processor.apply_chat_template(turns, tokenize=False, **last, **self.template_kwargs)
        except Exception as error:  # templates are programs of their own, which may refuse in any way
            raise UsageError(f"the chat template of {self.architecture} refused: {error}") from error
        return prompt

    @property
    def declared(self) -> dict[str, object]:
        """Whether an image's tokens are computed once, which changes scores by rounding."""
        return {"image_prefix": "computed once"} if self.shares_prefix else {}

    @cached_property
    def shares_prefix(self) -> bool:
        """Whether prompts of an image may share what they begin with, by a probe with one image and two questions.

        Both must read the same up to where they differ (not so where a prefix's tokens all see each other), and end
        in the same logits with the prefix computed once (not so where the model's cache cannot be copied).
        """
        if not self._is_encoded:
            return False
        read = self.tokens_read
        try:
            with torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
                (image,) = self.prepare([Pillow.linear_gradient("L").convert("RGB")])
                seen, rows = self.see([image]) * 2, [self.row(image, self.ask(text)) for text in _PROBES]
                ends = [torch.tensor([len(row["input_ids"]) - 1]) for row in rows]
                ((_, length),) = self._parts(seen, rows, ends)
                keep = [torch.cat([torch.tensor([length - 1]), end]) for end in ends]
                (begun, answer), (other, second) = self._whole(seen, rows, keep)
                ((again,), (after,)) = self._after_prefix(seen, rows, ends, length)
            off = [float((a - b).std() / b.std()) for a, b in ((begun, other), (again, answer), (after, second))]
            return off[0] <= _SAME[0] and max(off) <= _SAME[self.model.dtype != torch.float32]
        except torch.OutOfMemoryError:
            raise
        except Exception:  # models and caches refuse in many ways
            return False
        finally:
            self.tokens_read = read

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
            memory = ImageMemory(self.processor.image_processor, None)
            inputs = self.process(probe, frames, memory)
            of_text = self._of_text(inputs)
            features = {name: value for name, value in inputs.items() if name not in of_text}
            prepared.append(PreparedImage(image, memory.answer, features))
        return prepared

    def row(self, image: PreparedImage, prompt: str) -> Row:
        """A prompt's tokens for an image, with as many placeholders as the image has features."""
        if prompt not in image.rows:
            known = ImageMemory(self.processor.image_processor, image.answer)
            inputs = self.process(prompt, frames_of(image.image), known)
            own = [name for name in self._of_text(inputs) if name in self._forward and name != "labels"]
            image.rows[prompt] = {name: inputs[name][0] for name in own}
        return image.rows[prompt]

    def process(self, prompt: str, images: Sequence[Image], instead: ImageMemory | None = None) -> BatchFeature:
        """Output of the model's own processor for a prompt and its images; ``instead`` of its image processor."""
        processor, shown = self.processor, list(images) if len(images) == 1 else [list(images)]  # all of one prompt
        if instead is not None:
            processor = copy(processor)  # other threads prepare images by it
            processor.image_processor = instead
        inputs = {"text": [prompt], "images": shown, "return_tensors": "pt", **self.special_tokens(prompt)}
        return processor(**inputs)

    def _of_text(self, inputs: BatchFeature) -> list[str]:
        """The names of what is said of each token of a prompt, which may have as many as an image has patches."""
        length = inputs["input_ids"].shape
        shapes = {name: getattr(value, "shape", None) for name, value in inputs.items()}  # lists have none
        of_text = {name for name, shape in shapes.items() if shape == length and name not in self._of_image}
        return [name for name in inputs if name in of_text or name in (ACROSS, "labels")]

    def _encoded(self, image: PreparedImage) -> EncodedImage:
        inputs, dtype = on_device(image.features, self.device), self.model.dtype
        is_float = {name for name, value in inputs.items() if getattr(value, "is_floating_point", bool)()}
        inputs = {name: value.to(dtype) if name in is_float else value for name, value in inputs.items()}
        if not self._is_encoded:
            return EncodedImage(None, inputs)
        taken = self._of_image & set(inputs)
        with with_weights(self._core):
            output = self._core.get_image_features(**{name: inputs[name] for name in taken}, return_dict=True)
        beside = {name: value for name, value in inputs.items() if name.endswith(("grid_thw", "target_sizes"))}
        fields = {name: value for name, value in vars(output).items() if value is not None and name not in _INNER}
        return EncodedImage(type(output)(**fields), beside)

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
        if not torch.is_grad_enabled() and self.shares_prefix:
            parts = self._parts(seen, rows, keep)
        for members, length in parts:
            images, prompts = [seen[at] for at in members], [rows[at] for at in members]
            kept = [keep[at] for at in members]
            found = self._after_prefix(images, prompts, kept, length) if length else self._whole(images, prompts, kept)
            answers.update(zip(members, found, strict=True))
        return torch.cat([answers[at] for at in range(len(rows))])

    def _parts(self, seen: Sequence[EncodedImage], rows: Sequence[Row], keep: Sequence[torch.Tensor]) -> Parts:
        """`by_prefix` of encoded images and their prompts."""
        ids = [row["input_ids"] for row in rows]
        return by_prefix([id(image) for image in seen], ids, keep, self.model.config.image_token_id)

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
        if not spread(self.model):  # else the layers' states lie on several devices
            which = which.to(self.device, non_blocking=True)
        cache = "cache" if "cache" in self._forward else "past_key_values"  # its name before transformers 5.24
        begun[cache].reorder_cache(which)
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
        if "logits_to_keep" in self._forward:
            logits = self.model(**inputs, logits_to_keep=places).logits
        else:
            logits = torch.take_along_dim(self.model(**inputs).logits, places[..., None], dim=1)
        return [row[: len(kept)].float() for row, kept in zip(logits, keep, strict=True)]


class ImageMemory:
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
    """An image-text-to-text model; DataError for weights or an old transformers, UsageError if it cannot be asked."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    refuse_old_transformers()
    processor = load_part(AutoProcessor, pretrained)
    if not hasattr(processor, "image_processor") or not hasattr(processor, "tokenizer"):
        raise UsageError(f"{pretrained.files.name} has no processor for images and text")
    if asked.split_images is not None:
        names = [n for n in ("do_image_splitting", "crop_to_patches") if hasattr(processor.image_processor, n)]
        if not names:
            raise UsageError(f"{pretrained.files.name} does not split images; omit split_images")
        for name in names:
            setattr(processor.image_processor, name, asked.split_images)
    if asked.pad_images is not None:
        processor.image_processor = _padding(pretrained, processor.image_processor, asked.pad_images)
    loaded = load_whole(AutoModelForImageTextToText, pretrained, processor, placement_of(asked))
    chat = ImageTextModel(loaded, torch.device(pick_device(asked.device)), encodes)
    chat.template_kwargs = asked.chat_template_kwargs or {}
    return chat


def refuse_old_transformers() -> None:
    """DataError for a release with which models that answer prompts score something else."""
    from packaging.version import Version
    from transformers import __version__

    if Version(__version__) < Version(CHAT):
        raise DataError(
            f"this model needs transformers {CHAT} or newer, not {__version__}: pip install -U transformers"
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


def _padding(pretrained: Pretrained, processor: BaseImageProcessor, pad: bool) -> BaseImageProcessor:
    """LLaVA-1.5's image processor with the checkpoint's settings and this padding."""
    from transformers import AutoConfig, LlavaImageProcessor

    if load_part(AutoConfig, pretrained).model_type != "llava":
        raise UsageError(f"{pretrained.files.name} is not a LLaVA-1.5, and only its images are padded; omit pad_images")
    settings = processor.to_dict()
    for name in ("image_processor_type", "processor_class", "do_pad"):
        settings.pop(name, None)
    return LlavaImageProcessor(**settings, do_pad=pad)
