"""Names that people type for a model and that no plugin registers: which options run such a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ttmbench.types import AdapterSpec

_NAMED_BY = ("pretrained", "model", "path")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_OPENAI = re.compile(r"(?:openai/)?((?:gpt-|chatgpt-|o\d)[\w.-]*)", re.IGNORECASE)
_THINKS = re.compile(r"o\d|gpt-5", re.IGNORECASE)  # and lists no tokens
_SERVED = re.compile(r"(?:claude|gemini|grok|pixtral|mistral|qwen-vl)-[\w.-]+", re.IGNORECASE)
_OPEN_CLIP_HUB = re.compile(r"(?:laion|timm|apple|UCSC-VLAA|QuanSun)/", re.IGNORECASE)
_OPEN_CLIP = re.compile(r"(ViT-[A-Za-z]+)[-/](\d+)(@336px|-336)?|(RN\d+(?:x\d+)?)")
_KINDS = (  # of a hub id: what it contains, the kind of model
    (r"flan-?t5", "vqascore"),
    (r"blip-itm", "blip-itm"),
    (r"blip2-itm", "blip2-itm"),
    (r"blip-image-captioning|blip2-opt|blip2-flan", "visualgpt"),
    (r"clip|siglip", "hf"),
)
_LLAVA = re.compile(r"llava(?:-?v?1\.5)?(?:-(7|13)b)?(?:-hf)?", re.IGNORECASE)
_QWEN = re.compile(r"qwen(2\.5|2)?-?(?:vl)?(?:-(\d+)b)?(?:-instruct)?", re.IGNORECASE)


def options_for(name: str, specs: Iterable[AdapterSpec]) -> str | None:
    """The options that run a model which has no name of its own.

    Args:
        name: what was given for one: a hub id, a folder, a name at a server, a family.
        specs: the models that have a name.

    Returns:
        The options, as they are typed; None if nothing is known of such a name.

    >>> options_for("gpt-4o", [])
    '--model openai --model_args model=gpt-4o'
    >>> options_for("llava", [])
    '--model vqascore --model_args pretrained=llava-hf/llava-1.5-7b-hf'
    """
    registered = [spec.name for spec in specs if _is_registered_for(name, spec)]
    if registered:
        return " or ".join(f"--model {one}" for one in dict.fromkeys(registered))
    if served := _OPENAI.fullmatch(name):
        more = ",scorer=choice,temperature=none,max_tokens=2000" if _THINKS.match(served[1]) else ""
        return f"--model openai --model_args model={served[1]}{more}"
    if _SERVED.fullmatch(name):
        more = ",scorer=choice" if name.lower().startswith("claude") else ""
        return f"--model openai --model_args model={name},base_url=ADDRESS,api_key_env=VARIABLE{more}"
    if clip := _OPEN_CLIP.fullmatch(name):
        model = clip[4] or f"{clip[1]}-{clip[2]}{'-336' if clip[3] else ''}"
        return f"--model open_clip --model_args model={model},pretrained=openai"
    if ("/" in name or "\\" in name) and Path(name).is_dir():
        return f"--model hf --model_args pretrained={name}"
    if _HUB_ID.fullmatch(name):
        return _of_hub_id(name)
    if llava := _LLAVA.fullmatch(name):
        return f"--model vqascore --model_args pretrained=llava-hf/llava-1.5-{llava[1] or 7}b-hf"
    if qwen := _QWEN.fullmatch(name):
        return f"--model vqascore --model_args pretrained=Qwen/Qwen{qwen[1] or '2.5'}-VL-{qwen[2] or 7}B-Instruct"
    return None


def _of_hub_id(name: str) -> str:
    if _OPEN_CLIP_HUB.match(name):
        return f"--model open_clip --model_args model=hf-hub:{name}"
    kind = next((kind for sign, kind in _KINDS if re.search(sign, name, re.IGNORECASE)), "vqascore")
    return f"--model {kind} --model_args pretrained={name}"


def _is_registered_for(name: str, spec: AdapterSpec) -> bool:
    return any(str(spec.model_args.get(key, "")).casefold() == name.casefold() for key in _NAMED_BY)
