"""Which model adapter reads a file, a folder or a repository of the Hub: by its files, never by running them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ttmbench._util.file_io import Unreadable, read_json
from ttmbench._util.third_party import ADAPTER_CONFIG, CONFIG, HUB_ID, MODULES, OPEN_CLIP_CONFIG, quiet_hub, trouble
from ttmbench.errors import DataError

Fits = dict[str, dict[str, str]]
"""Name of a model adapter -> its arguments, the one that names the files last; the most fitting adapter first."""
OF_LIBRARY = "config_sentence_transformers.json"
_CHECKPOINTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_OF_KIND = {"MultiVectorEncoder": "multi_vector", "CrossEncoder": "cross_encoder"}
_HEADS = {
    **{"blip": ("itm", "blip-itc"), "blip-2": ("itm", "blip2-itc"), "flava": ("itm", "flava-itc")},
    **{"vilt": ("itm",), "bridgetower": ("itm",)},
}
_CAPTIONERS = ("blip", "git", "kosmos-2", "florence2")


def fitting(place: str, *, offline: bool = False) -> Fits | None:
    """The adapters that read a path or Hub id; None for a name that is neither.

    DataError for files that are damaged or not there, and for a repository that the Hub does not have or show.
    """
    path = Path(place)
    if path.is_file():
        return _of_file(place)
    if not path.is_dir():
        if path.suffix in (*_CHECKPOINTS, ".npz") or place.startswith((".", "/", "~")):
            raise DataError("there is no such file or folder")
        if not HUB_ID.fullmatch(place):
            return None
        from huggingface_hub import snapshot_download

        patterns = [MODULES, OF_LIBRARY, OPEN_CLIP_CONFIG, CONFIG, ADAPTER_CONFIG]
        try:
            with quiet_hub():
                path = Path(snapshot_download(place, allow_patterns=patterns, local_files_only=offline))
        except Exception as error:
            why = "shows no files of it here; give a model adapter: --model hf -a pretrained=ID (`ttmbench ls models`)"
            if trouble(error) == "unknown":
                why = f"has no repository {place}, or a private one: HF_TOKEN names an account"
            raise DataError(f"the Hub {why}") from None
    fits: Fits = {}
    if (kind := library_class(path)) is not None:
        fits[_OF_KIND.get(kind, "sentence_transformers")] = {"pretrained": place}
    if (path / OPEN_CLIP_CONFIG).is_file():
        fits["open_clip"] = {"model": f"{'local-dir' if Path(place).is_dir() else 'hf-hub'}:{place}"}
    if (path / CONFIG).is_file():
        fits |= {kind: {"pretrained": place} for kind in _of_transformers(_content(path / CONFIG))}
    elif (path / ADAPTER_CONFIG).is_file():
        base = str(_content(path / ADAPTER_CONFIG).get("base_model_name_or_path"))
        named = {"pretrained": place} if HUB_ID.fullmatch(base) else {"pretrained": base, "peft": place}
        fits |= dict.fromkeys(fitting(base, offline=offline) or (), named)
    return fits


def library_class(folder: Path) -> str | None:
    """The class of Sentence Transformers that reads a folder; None if none does. DataError for damaged files.

    Late interaction models of transformers are read without its files.
    """
    if (folder / MODULES).is_file():
        return str(_content(folder / OF_LIBRARY).get("model_type", "SentenceTransformer"))
    classes = _content(folder / CONFIG).get("architectures") or []
    return "MultiVectorEncoder" if str(classes[:1]).endswith("ForRetrieval']") else None


def _of_file(place: str) -> Fits | None:
    """Of a file of weights, or else of the folder that it lies in."""
    path = Path(place)
    if path.suffix == ".npz":
        return {"embeddings": {"path": place}}
    if path.suffix in _CHECKPOINTS:
        from ttmbench.model_adapters._shared.open_clip_weights import architecture_of, is_open_clip, tensors_in

        tensors = tensors_in(path)
        if {"img", "cap"} <= tensors.keys():
            return {"embeddings": {"path": place}}
        if is_open_clip(tensors):
            return {"open_clip": {"model": architecture_of(tensors) or "NAME", "pretrained": place}}
    return fitting(str(path.parent))


def _of_transformers(config: Mapping[str, Any]) -> Sequence[str]:
    """By model type and class; none for a class that the type's adapters do not read."""
    kind, classes = str(config.get("model_type")), config.get("architectures") or []
    if kind in _HEADS and not re.search("Generation|Answering", str(classes)):
        return _HEADS[kind]
    from transformers.models.auto import modeling_auto as known

    def has(task: str) -> bool:
        name = getattr(known, f"MODEL_FOR_{task}_MAPPING_NAMES").get(kind)
        return name is not None and all(one in str(name) for one in classes)

    if has("ZERO_SHOT_IMAGE_CLASSIFICATION"):
        return ("hf",)
    if has("IMAGE_TEXT_TO_TEXT"):
        asked = () if kind in _CAPTIONERS else ("vqascore",) if "blip" in kind else ("vqascore", "choice")
        return (*asked, "visualgpt", "blind")
    return ("blind",) if has("CAUSAL_LM") or has("SEQ_TO_SEQ_CAUSAL_LM") else ()


def _content(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path) if path.is_file() else {}
    except Unreadable as error:
        raise DataError(f"{path} {error}") from None
    return content if isinstance(content, dict) else {}
