"""The parts of an open_clip model: its configuration, one file of weights, and its tokenizer.

A library name with a tag or a file, a Hub repository and a folder all become an ``open_clip_config.json``: there is one
way to build a model, and open_clip itself downloads nothing. Of files, read are a mapping of tensors; the same under
``state_dict`` or ``model``, beside the state of an optimizer; names behind ``module.`` or ``model.``; and LoRA factors
beside the weights that they change, as loralib names them.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import open_clip
import torch
from open_clip import CLIP
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict
from open_clip.tokenizer import HFTokenizer
from open_clip.transform import PreprocessCfg, merge_preprocess_dict
from safetensors import safe_open

from ttmbench._util.file_io import check_no_pointer
from ttmbench._util.third_party import OPEN_CLIP_CONFIG as CONFIG
from ttmbench._util.third_party import near_name
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.contrastive import ADVICE_ON_GELU, QUICK
from ttmbench.model_adapters._shared.options import OpenClipFiles
from ttmbench.model_adapters._shared.pretrained import (
    Repository,
    check_files,
    check_size,
    described,
    find_repository,
    read_weights,
)
from ttmbench.types import ModelFiles

WEIGHTS = "open_clip_model.safetensors"
FOLDER, HUB = "local-dir:", "hf-hub:"
_SAFE = ".safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_NAMES = (WEIGHTS, "open_clip_pytorch_model.safetensors", "model.safetensors")
_PICKLE_NAMES = ("open_clip_pytorch_model.bin", "pytorch_model.bin")
_FIRST_TENSORS = ("visual.", "module.", "image_encoder.")  # model.safetensors of many repositories is transformers' own
_OWN = "an architecture of your own is given by --model_args model_config=FILE.json"

Tensors = dict[str, torch.Tensor]
POSITIONS = "positional_embedding"
_UNDER = ("state_dict", "model_state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.", "model.", "clip_model.")
_SIZES = ("input_resolution", "context_length", "vocab_size")  # in OpenAI's own files, numbers beside the weights
_A, _B = "lora_A", "lora_B"
_IDS = "text.transformer.embeddings.position_ids"  # written by transformers before 4.31

Config = Mapping[str, Any]
"""Of an ``open_clip_config.json``, or its ``model_cfg``."""
Found = tuple[Config, ModelFiles, str | None, Repository | None]
"""Configuration, weights, the file that may not state its activation if open_clip does not know it, repository."""


@dataclass(frozen=True)
class Source:
    """The parts of a model, all on this machine; folders are of a tokenizer and a text tower's configuration.

    ``config`` is as in an ``open_clip_config.json``; ``base`` is the file of weights to interpolate with, if so.
    """

    model: str
    config: Config
    files: ModelFiles
    tokenizer: Path | None
    text_config: Path | None
    notes: tuple[str, ...]
    asked: OpenClipFiles
    base: Path | None = None

    @property
    def weights(self) -> Path:
        """The file of weights."""
        return self.files.folder / self.files.weights[0]


def find(asked: OpenClipFiles, quick_gelu: bool | None = None) -> Source:
    """Looks a model up and fetches its parts, with ``quick_gelu`` as its activation unless that is None.

    UsageError for an unknown model or tag, or weights that are not named or not read; DataError for unavailable parts.
    """
    model = _name(asked)
    is_named = not model.startswith((FOLDER, HUB))
    if not is_named and asked.pretrained is not None:
        raise UsageError(f"{model} brings its own weights; omit pretrained={asked.pretrained}")
    config, files, silent, repository = _from_library(asked) if is_named else _from_repository(asked)
    model_config: Config = config["model_cfg"]
    base = None
    if asked.interpolate is not None:
        if not is_named:
            raise UsageError("interpolate needs the name of an architecture, or model_config, and pretrained")
        changes = {"pretrained": asked.base, "revision": None, "interpolate": None, "lora_alpha": None}
        base, path = _from_library(asked.model_copy(update=changes))[1], files.folder / files.weights[0]
        tensors = tensors_in(path)
        found = next((tensors[name] for name in (POSITIONS, f"text.{POSITIONS}") if name in tensors), None)
        if found is None:
            raise DataError(f"{path} has no {POSITIONS}, so its weights cannot be interpolated")
        model_config = {**model_config, "text_cfg": {**model_config["text_cfg"], "context_length": len(found)}}
    notes: tuple[str, ...] = ()
    if quick_gelu is not None:
        if model_config["vision_cfg"].get("timm_model_name"):
            raise UsageError(f"quick_gelu: the image tower of {model} is timm's, which has no such choice; omit it")
        model_config = {**model_config, QUICK: quick_gelu}
    elif silent is not None and model_config.get(QUICK) is None and has_two_forms(model_config):
        notes = (f"{silent} does not state its activation, so GELU is used. {ADVICE_ON_GELU}",)
    is_folder, beside = repository is not None and repository.is_folder, dict[str, ModelFiles]()
    if base is not None:
        beside[base.name] = base

    def fetched(name: str) -> Path:
        """As open_clip: from a folder, or from the weights' own repository, where that contains the files."""
        if repository is not None and (is_folder or repository.name.lower() == name.lower()):
            return repository.get()
        if name not in beside:
            other = find_repository(name, offline=asked.offline)
            beside[name] = ModelFiles(name, other.get(), (), other.commit)
        return beside[name].folder

    tokenizer, tower = (model_config["text_cfg"].get(key) for key in ("hf_tokenizer_name", "hf_model_name"))
    folders = fetched(tokenizer) if tokenizer else None, fetched(tower) if tower and not is_folder else None
    files = replace(files, beside=tuple(beside.values()))
    config = {**config, "model_cfg": model_config}
    base_file = None if base is None else base.folder / base.weights[0]
    return Source(model, config, files, *folders, notes, asked, base_file)


def build(source: Source) -> open_clip.CLIP:
    """The model with its weights, float32, on the CPU; DataError if they do not fit."""
    config = source.config
    if source.text_config is not None:
        text = {**config["model_cfg"]["text_cfg"], "hf_model_name": str(source.text_config)}
        config = {**config, "model_cfg": {**config["model_cfg"], "text_cfg": text}}
    with TemporaryDirectory() as folder:
        write_config(config, Path(folder))
        try:
            model = open_clip.create_model(f"{FOLDER}{folder}", load_weights=False, pretrained_text=False)
        except Exception as error:
            raise DataError(f"{source.model} cannot be built from its configuration ({described(error)})") from error
    asked, path = source.asked, source.weights
    tensors = merged(tensors_in(path), asked.lora_alpha, str(path))
    if source.base is not None:
        tensors = interpolated(tensors_in(source.base), tensors, asked.interpolate or 0.0)
    try:
        fill(model, tensors)
    except Exception as error:
        hint = "" if source.model.startswith((FOLDER, HUB)) else f"; {_OWN}"
        raise DataError(f"{path} does not fit {source.model} ({described(error)}){hint}") from error
    return model


def tokenizer_of(source: Source) -> open_clip.SimpleTokenizer | HFTokenizer:
    """The tokenizer that open_clip would take, from files on this machine; DataError if they are missing or damaged."""
    text = source.config["model_cfg"]["text_cfg"]
    options = {"context_length": text.get("context_length", 77), **text.get("tokenizer_kwargs", {})}
    made, where = None, source.tokenizer
    if where is None:
        made = _own_tokenizer(json.dumps(options))
    else:
        try:
            mode = text.get("tokenizer_mode")
            made = HFTokenizer(str(where), tokenizer_mode=mode, local_files_only=True, **options)
        except Exception as error:
            why = described(error)
            raise DataError(f"the tokenizer of {source.model} cannot be loaded from {where} ({why})") from error
        check_files(made.tokenizer, where, source.model)
    check_size(getattr(made, "tokenizer", made), text.get("vocab_size"), source.model)
    return made


@functools.lru_cache(maxsize=4)
def _own_tokenizer(options: str) -> open_clip.SimpleTokenizer:
    """open_clip's own tokenizer, whose 49,000 merges take long to read."""
    return open_clip.SimpleTokenizer(**json.loads(options))


def write_config(config: Config, folder: Path) -> None:
    """Writes the file that ``local-dir:`` and ``hf-hub:`` read."""
    (folder / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")


def _from_repository(asked: OpenClipFiles) -> Found:
    """A repository of the Hub or a folder, with its own configuration."""
    model = _name(asked)
    repo = model.removeprefix(HUB).removeprefix(FOLDER)
    if model.startswith(FOLDER) and not Path(repo).is_dir():
        raise DataError(f"{model}: there is no such folder")
    repository = find_repository(repo, asked.revision, offline=asked.offline)
    if CONFIG not in repository.files:
        hint = f"model=NAME,pretrained={HUB}{repo} takes weights of an architecture that open_clip names"
        raise DataError(f"{model} has no {CONFIG}, so it is not a model of open_clip; {hint}")
    config = _read_config(repository.get([CONFIG]) / CONFIG)
    others = sorted(file for file in repository.files if repository.is_folder and file.endswith((_SAFE, *_PICKLES)))
    tags = [open_clip.get_pretrained_cfg(*pair) for pair in open_clip.list_pretrained()]
    gelu = {tag["hf_hub"].rpartition("/")[0] for tag in tags if tag.get("hf_hub") and not tag.get(QUICK)}
    return config, _weights_in(repository, others), None if repo in gelu else f"{CONFIG} of {model}", repository


def _from_library(asked: OpenClipFiles) -> Found:
    model, pretrained = _name(asked), asked.pretrained
    model_config, preprocessing = _architecture(asked)
    tags = open_clip.list_pretrained_tags_by_model(model) if asked.architecture is None else []
    listed = f"tags: {_some(tags)}" if tags else "open_clip has no tags for it"
    if not pretrained:
        raise UsageError(f"{model} without weights is random; give pretrained=<tag or file of weights>; {listed}")
    tag = open_clip.get_pretrained_cfg(model, pretrained) if tags else {}
    config = {"model_cfg": model_config, "preprocess_cfg": merge_preprocess_dict(preprocessing, tag)}
    silent = pretrained if asked.architecture is None else f"model_config={model}"
    if pretrained.startswith(HUB):
        return config, _weights_of_hub(pretrained.removeprefix(HUB), asked), silent, None
    if not tag:
        path = _own_file(pretrained, model, near_name(pretrained, tags, f"; {listed}"))
        return config, ModelFiles(pretrained, path.parent, (path.name,)), silent, None
    repo, _, file = tag["hf_hub"].rpartition("/")
    if not repo:
        raise DataError(f"the weights {pretrained} of {model} are not on the Hub, and are not fetched elsewhere")
    if tag.get(QUICK):
        model_config = {**model_config, QUICK: True}  # as these weights were trained; open_clip only warns
    config["model_cfg"] = model_config
    repository = find_repository(repo, asked.revision, offline=asked.offline)
    named = (str(Path(file).with_suffix(_SAFE)), file) if file else ()
    return config, _weights_in(repository, (), named), None, repository


def _name(asked: OpenClipFiles) -> str:
    """As results state it: a library name with dashes, a place with its prefix, the name of a file."""
    if asked.model is None:
        return Path(str(asked.architecture)).name
    return asked.model if asked.model.startswith((FOLDER, HUB)) else asked.model.replace("/", "-")


def _architecture(asked: OpenClipFiles) -> tuple[Config, PreprocessCfg | Config]:
    """``model_cfg`` and preprocessing of an architecture, by name or from a JSON file."""
    if asked.architecture is not None:
        path = Path(asked.architecture)
        if not path.is_file():
            raise DataError(f"model_config={path}: there is no such file")
        config = _read_config(path)
        return config["model_cfg"], config["preprocess_cfg"]
    model = _name(asked)
    model_config = open_clip.get_model_config(model)
    if model_config is None:
        known = open_clip.list_models()
        hint = near_name(model, known, f"; known: {_some(known)}")
        raise UsageError(f"open_clip has no model '{model}'{hint}; others are {HUB}<id> and {FOLDER}<folder>; {_OWN}")
    return model_config, PreprocessCfg()


def _weights_of_hub(place: str, asked: OpenClipFiles) -> ModelFiles:
    """The weights at ``<id>[/file]``; without a file the only one, or one with a name that open_clip looks for."""
    owner, _, rest = place.partition("/")
    name, _, file = rest.partition("/")
    repository = find_repository(f"{owner}/{name}", asked.revision, offline=asked.offline)
    others = sorted(one for one in repository.files if Path(one).suffix in (_SAFE, *_PICKLES))
    if file and file not in others:
        raise DataError(f"{repository.name} has no weights {file}; it has: {_some(others) or 'none'}")
    if not file and len(others) > 1 and not {*_NAMES, *_PICKLE_NAMES} & {*others}:
        raise UsageError(
            f"{repository.name} has {len(others)} files of weights; name one, {HUB}ID/FILE: {_some(others)}"
        )
    if file:
        repository = replace(repository, files=frozenset([file]))
    return _weights_in(repository, others)


def _weights_in(repository: Repository, others: Iterable[str], named: Sequence[str] = ()) -> ModelFiles:
    """The first file whose tensors have open_clip's names, of names in this order, safetensors before pickles."""
    names = dict.fromkeys([*named, *_NAMES, *_PICKLE_NAMES, *others])
    existing = sorted((name for name in names if name in repository.files), key=lambda name: not name.endswith(_SAFE))
    for name in existing:
        if _holds_open_clip(repository.get([name]) / name):
            return ModelFiles(repository.name, repository.get([name]), (name,), repository.commit)
    if repository.folder is not None and not repository.is_folder:
        raise repository.lacking([WEIGHTS])
    raise DataError(f"{repository.name} has no weights of open_clip ({WEIGHTS} or {_PICKLE_NAMES[0]})")


def _own_file(pretrained: str, model: str, hint: str) -> Path:
    path = Path(pretrained)
    if path.suffix not in (_SAFE, *_PICKLES):
        endings = f"files of weights end in {_SAFE}, {', '.join(_PICKLES)}"
        raise UsageError(
            f"pretrained={pretrained}: {endings}" if path.is_file() else f"{model} has no weights '{pretrained}'{hint}"
        )
    if not path.is_file():
        raise DataError(f"pretrained={pretrained}: there is no such file")
    return path


def _holds_open_clip(path: Path) -> bool:
    """Whether a file's tensors have open_clip's names; DataError if it cannot be read."""
    check_no_pointer(path)
    if path.suffix != _SAFE:
        return is_open_clip(unwrapped(read_weights(path)))
    try:
        with safe_open(path, framework="pt") as tensors:
            return is_open_clip(tensors.keys())
    except Exception as error:
        raise DataError(f"{path} cannot be read: it is damaged ({described(error)})") from error


def is_open_clip(names: Iterable[str]) -> bool:
    """Whether tensors have open_clip's names."""
    return any(name.startswith(_FIRST_TENSORS) for name in names)


def architecture_of(tensors: Tensors) -> str | None:
    """The architecture whose ViT and text tower have these shapes, by its shortest name; None for other towers."""
    shapes = {name.removeprefix("text."): tensor.shape for name, tensor in tensors.items()}
    try:
        width, _, _, patch = shapes["visual.conv1.weight"]
        positions = [
            shapes[f"visual.{POSITIONS}"][0],
            *(shapes[name][0] for name in (POSITIONS, "token_embedding.weight")),
        ]
        found = [width, patch, *positions, *shapes["text_projection"]]
    except (KeyError, ValueError, IndexError):
        return None
    layers = [f"{tower}transformer.resblocks.{{}}.ln_1.weight" for tower in ("visual.", "")]
    found += [next(number for number in itertools.count() if name.format(number) not in shapes) for name in layers]
    return min(
        (name for name in open_clip.list_models() if _sizes(open_clip.get_model_config(name)) == found),
        key=len,
        default=None,
    )


def _sizes(model_config: Config) -> list[object]:
    image = {**asdict(open_clip.CLIPVisionCfg()), **model_config["vision_cfg"]}
    text = {**asdict(open_clip.CLIPTextCfg()), **model_config["text_cfg"]}
    if image["timm_model_name"] or not isinstance(image["layers"], int):
        return []
    patches = (image["image_size"] // image["patch_size"]) ** 2 + 1
    sizes = [image["width"], image["patch_size"], patches, text["context_length"], text["vocab_size"]]
    return [*sizes, text["width"], model_config["embed_dim"], image["layers"], text["layers"]]


def _read_config(path: Path) -> Config:
    check_no_pointer(path)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if path.name != CONFIG and "model_cfg" not in config:
            config = {"model_cfg": config}  # as open_clip's own files of architectures are
        preprocessing = merge_preprocess_dict(PreprocessCfg(), config.get("preprocess_cfg", {}))
        model_config = config["model_cfg"]
        missing = [key for key in ("embed_dim", "vision_cfg", "text_cfg") if key not in model_config]
    except Exception as error:
        raise DataError(f"{path} is not a configuration of open_clip ({described(error)})") from error
    if missing:
        raise DataError(f"{path} is not a configuration of open_clip (model_cfg lacks {missing[0]})")
    return {"model_cfg": model_config, "preprocess_cfg": preprocessing}


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def has_two_forms(model_config: Config) -> bool:
    """Whether open_clip has an architecture with QuickGELU and with GELU, whatever sizes finetuning may change."""
    names = [name for name in open_clip.list_models() if name.endswith("-quickgelu")]
    return _towers(model_config) in [_towers(open_clip.get_model_config(name)) for name in names]


def _towers(model_config: Config) -> list[object]:
    """The architecture of both towers, without sizes that finetuning may change."""
    image = {**asdict(open_clip.CLIPVisionCfg()), **model_config["vision_cfg"]}
    text = {**asdict(open_clip.CLIPTextCfg()), **model_config["text_cfg"]}
    return [
        model_config["embed_dim"],
        *(image[name] for name in ("timm_model_name", "layers", "width", "head_width", "patch_size")),
        *(text[name] for name in ("hf_model_name", "layers", "width", "heads")),
    ]


def tensors_in(path: Path) -> Tensors:
    """The tensors of a file of weights without what surrounds them; DataError if it holds none, or is damaged."""
    tensors = unwrapped(read_weights(path))
    if not tensors:
        raise DataError(f"{path} holds no tensors by name, directly or under {', '.join(_UNDER)}")
    return tensors


def unwrapped(content: object) -> Tensors:
    """The tensors by name in what a file holds; empty if there are none."""
    for key in _UNDER:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    named = content.items() if isinstance(content, Mapping) else ()
    tensors = {str(name): tensor for name, tensor in named if isinstance(tensor, torch.Tensor) and name not in _SIZES}
    while wrapper := next((one for one in _WRAPPERS if tensors and all(name.startswith(one) for name in tensors)), ""):
        tensors = {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}
    return tensors


def merged(tensors: Tensors, alpha: float | None, file: str) -> Tensors:
    """Weights with their LoRA factors added: W + alpha / r B A, float32.

    A layer has W ``NAME.weight`` [out, in], A ``NAME.lora_A`` [r, in] and B ``NAME.lora_B`` [out, r]; a parameter
    ``NAME`` has ``NAME_lora_A``. Of a convolution with kernel k, A is [r k, in k] and B [out k, r k]; of an embedding
    [words, out], B A is the change of its transpose. UsageError for factors without ``alpha`` or the reverse, DataError
    for factors that do not fit.
    """
    names = [name for name in tensors if name.endswith(_A)]
    if bool(names) != (alpha is not None):
        advice = (
            "give lora_alpha=..., as in their training (DAC, TSVLC and FSC-CLIP: 1), by which they are scaled"
            if names
            else "omit lora_alpha"
        )
        raise UsageError(f"{file} has {'' if names else 'no '}LoRA factors; {advice}")
    result = {name: tensor for name, tensor in tensors.items() if not name.endswith((_A, _B))}
    for name in names:
        stem = name.removesuffix(_A)
        target = stem[:-1] if stem.endswith("_") else f"{stem}weight"
        try:
            result[target] = _changed(result[target].float(), tensors[name], tensors[stem + _B], alpha or 0.0)
        except (KeyError, RuntimeError) as error:
            raise DataError(
                f"{file}: the LoRA factors of {target} do not fit ({type(error).__name__}: {error})"
            ) from None
    return result


def interpolated(base: Tensors, tensors: Tensors, weight: float) -> Tensors:
    """(1 - weight) base + weight tensors, float32, at the first text positions of ``base``; DataError otherwise."""
    different = sorted(base.keys() ^ tensors.keys())
    if different:
        raise DataError(f"weights to interpolate between have different tensors, the first is {different[0]}")
    result = {}
    for name, end in tensors.items():
        start = base[name].float()
        start = start[: len(end)] if name.endswith(POSITIONS) and not name.startswith("visual.") else start
        if start.numel() != end.numel():
            raise DataError(f"{name} is {list(end.shape)}, but {list(start.shape)} in the weights to interpolate with")
        result[name] = (1 - weight) * start.reshape(end.shape) + weight * end.float()
    return result


def fill(model: CLIP, tensors: Tensors) -> None:
    """Loads every tensor as it is, under the names that open_clip's ``load_checkpoint`` gives it.

    ValueError for position embeddings of another size, RuntimeError for a tensor that is missing, not in the model, or
    of another shape.
    """
    tensors = convert_state_dict(model, tensors)
    if POSITIONS in tensors and not hasattr(model, POSITIONS):
        tensors = convert_to_custom_text_state_dict(tensors)
    expected = model.state_dict()
    for name in ("logit_scale", "logit_bias"):  # a number, or a list of one
        if name in tensors and name in expected:
            tensors[name] = tensors[name].reshape(expected[name].shape)
    if _IDS not in expected:
        tensors.pop(_IDS, None)
    other = [
        f"{name} {list(tensors[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in expected.items()
        if ("position" in name or "pos_embed" in name) and tensors.get(name, tensor).shape != tensor.shape
    ]
    if other:
        raise ValueError(
            f"position embeddings are {', '.join(other)}; give the image_size and context_length of the weights"
        )
    model.load_state_dict(tensors)


def _changed(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    kernel = weight.shape[-1] if weight.ndim == 4 else 1
    change = (alpha / (a.shape[0] / kernel)) * (b.float() @ a.float())
    if weight.ndim == 4:
        change = change.reshape(weight.shape)
    elif change.shape != weight.shape:
        change = change.T
    if change.shape != weight.shape:
        raise RuntimeError(f"a change of {list(change.shape)} to weights of {list(weight.shape)}")
    return weight + change
