"""Forced choices in words of a model with a chat template, by greedy generation.

Questions are asked one by one: no padding, so nothing beside a question moves its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.contrastive import count_parameters, declared_name, pick_device
from ttmbench.model_adapters._shared.fingerprints import describe_model
from ttmbench.model_adapters._shared.image_text import ImageTextModel, load_image_text
from ttmbench.model_adapters._shared.placement import Placement, own_parameters, weights_digest
from ttmbench.model_adapters._shared.precision import arithmetic, check_dtype
from ttmbench.model_adapters._shared.pretrained import find, locate, weights_and_dtype
from ttmbench.protocols import ChoiceQuestion, ChoiceStyle

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ChatChooser", "load", "locate"]
ORDERS = ("random", "both")
CHOICE_TOKENS = 100  # as behind a server; most answers end after a few
HINT = "--model_args side_by_side=true joins them into one"


def load(
    *,
    pretrained: str,
    revision: str | None = None,
    weights: str = "auto",
    order: str = "random",
    side_by_side: bool = False,
    max_tokens: int = CHOICE_TOKENS,
    weights_dtype: str | None = None,
    split_images: bool | None = None,
    pad_images: bool | None = None,
    attn_implementation: str | None = None,
    device_map: Any = None,
    max_memory: Any = None,
    offload_folder: str | None = None,
    load_in_4bit: bool = False,
    load_in_8bit: bool = False,
    quantization_config: Any = None,
    device: str = "auto",
    dtype: str = "fp32",
    offline: bool = False,
    trust_remote_code: bool = False,
) -> ChatChooser:
    """Loads a model that is asked forced choices, from the hub or a folder.

    Args:
        pretrained: hub id, or a folder that ``save_pretrained`` wrote.
        revision: commit, tag or branch on the hub.
        weights: ``auto``: safetensors, else a pickle, read as tensors alone; ``safetensors`` refuses pickles.
        order: of options: ``random`` by seed, or ``both``.
        side_by_side: join the two images of a question, for models that take one.
        max_tokens: of an answer.
        weights_dtype: ``fp32``, ``bf16`` or ``fp16``: how they are kept in memory.
        split_images: cut images into tiles or not, where the model can do both.
        pad_images: pad images of LLaVA-1.5 to a square or not; by default what the checkpoint's processor says.
        attn_implementation: ``eager`` or ``sdpa``; by default transformers chooses.
        device_map: spread over devices as accelerate does: ``auto``, or part -> device; models with a chat template.
        max_memory: of ``device_map=auto``: device -> what it may hold.
        offload_folder: for weights that go to the disk.
        load_in_4bit: weights packed by bitsandbytes; models with a chat template, as are the next two.
        load_in_8bit: likewise.
        quantization_config: further settings of either, or of another method (``quant_method``).
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        dtype: of the arithmetic; the last layer is fp32 in any case.
        offline: use what is on this machine only.
        trust_remote_code: run code that the hub repository ships.

    Returns:
        An adapter.

    Raises:
        DataError: the weights are out of reach, damaged, or have tensors missing.
        UsageError: the model has no chat template, or an argument is wrong.
    """
    check_dtype(dtype)
    if order not in ORDERS:
        raise UsageError(f"order must be {' or '.join(ORDERS)}, got {order}")
    if not isinstance(side_by_side, bool):
        raise UsageError(f"side_by_side must be true or false, got {side_by_side}")
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise UsageError(f"max_tokens must be a whole number above 0, got {max_tokens}")
    placement = Placement.of(
        device=device,
        device_map=device_map,
        max_memory=max_memory,
        offload_folder=offload_folder,
        load_in_4bit=load_in_4bit,
        load_in_8bit=load_in_8bit,
        quantization_config=quantization_config,
    )
    weights, weights_dtype = weights_and_dtype(weights, weights_dtype)
    chat = load_image_text(
        find(pretrained, revision, weights=weights, offline=offline, trust_remote_code=trust_remote_code),
        device=torch.device(pick_device(device)),
        weights_dtype=weights_dtype,
        attn_implementation=attn_implementation,
        split_images=split_images,
        pad_images=pad_images,
        encodes=False,
        placement=placement,
    )
    style = ChoiceStyle(cast(Literal["random", "both"], order), side_by_side)
    return ChatChooser(chat, name=pretrained, style=style, max_tokens=max_tokens, dtype=dtype)


class ChatChooser:
    """A `ChoiceScorer` over an image-text-to-text model.

    Args:
        chat: model and processor; the model's generation settings are replaced.
        name: as the fingerprint states it.
        style: how it is asked.
        max_tokens: of an answer.
        dtype: of the arithmetic.

    Raises:
        UsageError: the model has no chat template.
    """

    def __init__(
        self,
        chat: ImageTextModel,
        *,
        name: str,
        style: ChoiceStyle,
        max_tokens: int = CHOICE_TOKENS,
        dtype: str = "fp32",
    ) -> None:
        if not chat.processor.chat_template:
            raise UsageError(f"{name} has no chat template, so it is not known how to ask it")
        self.chat, self.name, self.choice_style, self.max_tokens = chat, name, style, max_tokens
        self.dtype, self.files = check_dtype(dtype), chat.files
        self.weights_sha256 = weights_digest(chat.model)
        chat.model.generation_config = _greedy(chat, max_tokens)

    def fingerprint(self) -> Mapping[str, Any]:
        """Digest of the weights and what else changes an answer; the questions are in the results under ``choice``."""
        model, processor = self.chat.model, self.chat.processor
        return {
            "pretrained": declared_name(self.name),
            "architecture": type(model).__name__,
            "weights_sha256": self.weights_sha256,
            "scorer": "choice",
            "order": self.choice_style.order,
            "side_by_side": self.choice_style.side_by_side,
            "decoding": "greedy",
            "max_tokens": self.max_tokens,
            "prompt": self.chat.ask("{question}"),
            "image_processor": type(processor.image_processor).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "weights": str(model.dtype).removeprefix("torch."),
            "n_parameters": count_parameters(own_parameters(model)),
            **describe_model(model, self.chat.device, processor=processor),
        }

    def answer(self, questions: Sequence[ChoiceQuestion]) -> list[str | None]:
        """One text a question, without special tokens and the space around it.

        Raises:
            UsageError: the template or the processor cannot show several images.
        """
        return [self._answer(question.prompt, list(question.images)) for question in questions]

    def _answer(self, prompt: str, images: Sequence[Image]) -> str:
        model = self.chat.model
        inputs = self._inputs(prompt, images).to(self.chat.device, model.dtype)  # whole numbers stay what they are
        with torch.inference_mode(), arithmetic(self.chat.device, self.dtype):
            tokens = model.generate(**inputs)
        detail = tokens[0, inputs["input_ids"].shape[1] :]
        text: str = self.chat.tokenizer.decode(detail, skip_special_tokens=True)
        return text.strip()

    def _inputs(self, prompt: str, images: Sequence[Image]) -> Any:
        if len(images) == 1:
            return self.chat.process(self.chat.ask(prompt), images)
        refused = f"{type(self.chat.model).__name__} cannot be shown {len(images)} images at once"
        try:
            asked = self.chat.ask(prompt, len(images))
            marks = asked.count(getattr(self.chat.processor, "image_token", None) or "\0")
            counted = marks == len(images) if marks else asked != self.chat.ask(prompt, len(images) - 1)
            inputs = self.chat.process(asked, images) if counted else None
        except Exception as error:  # templates and processors refuse in many ways
            raise UsageError(f"{refused}: {error}; {HINT}") from error
        if inputs is None:
            raise UsageError(f"{refused}: its chat template shows fewer; {HINT}")
        return inputs


def _greedy(chat: ImageTextModel, max_tokens: int) -> Any:
    """The most probable token each time: of a model's own generation settings only its special tokens are kept."""
    from transformers import GenerationConfig

    own, tokenizer = chat.model.generation_config, chat.tokenizer
    ends = tokenizer.eos_token_id if own.eos_token_id is None else own.eos_token_id
    first_end = ends[0] if isinstance(ends, list) else ends
    pads = next((pad for pad in (own.pad_token_id, tokenizer.pad_token_id, first_end) if pad is not None), None)
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_tokens,
        bos_token_id=own.bos_token_id,
        eos_token_id=ends,
        pad_token_id=pads,
    )
