"""VisualGPTScore (arXiv:2306.01879): how likely a generative model finds the caption, given the image."""

from __future__ import annotations

from typing import Any

import torch

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.captioners import Blip2Captioner, BlipCaptioner, ChatCaptioner
from ttmbench.model_adapters._shared.captioning import CaptionModel, Debiasing
from ttmbench.model_adapters._shared.contrastive import pick_device
from ttmbench.model_adapters._shared.image_text import load_image_text
from ttmbench.model_adapters._shared.placement import Placement, refuse_placement
from ttmbench.model_adapters._shared.precision import check_dtype
from ttmbench.model_adapters._shared.pretrained import (
    find,
    load_config,
    load_part,
    load_weights,
    locate,
    weights_and_dtype,
)

__all__ = ["load", "locate"]


def load(
    *,
    pretrained: str,
    revision: str | None = None,
    weights: str = "auto",
    alpha: float = 0.0,
    prior: str = "noise",
    noise_images: int | None = None,
    noise_mean: float = 0.0,
    noise_std: float = 0.25,
    noise_seed: int = 0,
    prompt: str = "",
    end_token: bool = False,
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
) -> CaptionModel:
    """Loads a generative model from the hub or a folder: BLIP, BLIP-2, or one with a chat template.

    Args:
        pretrained: hub id, or a folder that ``save_pretrained`` wrote.
        revision: commit, tag or branch on the hub.
        weights: ``auto``: safetensors, else a pickle, read as tensors alone; ``safetensors`` refuses pickles.
        alpha: how much of log P(t) a run takes off, from 0 to 1 (Eq. 7).
        prior: where P(t) comes from: ``noise``, or ``test_images``, the mean over the task's images.
        noise_images: how many noise images; by default as many as the task says, or else 3.
        noise_mean: of the noise, in normalised pixels.
        noise_std: of the noise, in normalised pixels.
        noise_seed: draws the noise.
        prompt: text before the caption; of a chat model, the user's turn beside the image.
        end_token: also score the token that ends the caption.
        weights_dtype: ``fp32``, ``bf16`` or ``fp16``: how they are kept in memory.
        split_images: cut images into tiles or not, where a chat model can do both.
        pad_images: pad images of LLaVA-1.5 to a square or not; by default what the checkpoint's processor says.
        attn_implementation: ``eager`` or ``sdpa``; by default transformers chooses.
        device_map: spread over devices as accelerate does: ``auto``, or part -> device; models with a chat template.
        max_memory: of ``device_map=auto``: device -> what it may hold.
        offload_folder: for weights that go to the disk.
        load_in_4bit: weights packed by bitsandbytes; models with a chat template, as are the next two.
        load_in_8bit: likewise.
        quantization_config: further settings of either, or of another method (``quant_method``).
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        dtype: of the arithmetic; the last layer and scores are fp32 in any case.
        offline: use what is on this machine only.
        trust_remote_code: run code that the hub repository ships.

    Returns:
        An adapter.

    Raises:
        DataError: the weights are out of reach, damaged, or have tensors missing.
        UsageError: the model cannot write captions, or an argument is wrong.
    """
    import transformers

    check_dtype(dtype)
    debiasing = Debiasing(alpha, prior, noise_images, noise_mean, noise_std, noise_seed).check()
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
    found = find(pretrained, revision, weights=weights, offline=offline, trust_remote_code=trust_remote_code)
    family = load_config(found).model_type
    options = {
        "name": pretrained,
        "prompt": prompt,
        "end_token": end_token,
        "debiasing": debiasing,
        "device": device,
        "dtype": dtype,
        "files": found.files,
    }
    known = {
        "blip": (transformers.BlipForConditionalGeneration, BlipCaptioner),
        "blip-2": (transformers.Blip2ForConditionalGeneration, Blip2Captioner),
    }
    if family in known:
        if split_images is not None or pad_images is not None:
            raise UsageError(f"{pretrained} neither splits nor pads images; leave split_images and pad_images out")
        refuse_placement(pretrained, placement)
        kind, adapter = known[family]
        model = load_weights(kind, found, dtype=weights_dtype, attn_implementation=attn_implementation)
        tokenizer = load_part(transformers.AutoTokenizer, found)
        return adapter(model, tokenizer, load_part(transformers.AutoImageProcessor, found), **options)
    chat = load_image_text(
        found,
        device=torch.device(pick_device(device)),
        weights_dtype=weights_dtype,
        attn_implementation=attn_implementation,
        split_images=split_images,
        pad_images=pad_images,
        placement=placement,
    )
    return ChatCaptioner(chat, **options)
