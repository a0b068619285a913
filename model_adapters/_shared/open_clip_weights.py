"""The parts of an open_clip model: its configuration, one file of weights, and its tokenizer.

A library name with a tag or a file, a Hub repository and a folder all become an ``open_clip_config.json``: there is one
way to build a model, and open_clip itself downloads nothing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import open_clip
from open_clip.tokenizer import HFTokenizer
from open_clip.transform import PreprocessCfg, merge_preprocess_dict
from safetensors import safe_open

from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.contrastive import ADVICE_ON_GELU, QUICK
from ttmbench.model_adapters._shared.options import OpenClipFiles
from ttmbench.model_adapters._shared.pickled_weights import only_tensors, read_pickle
from ttmbench.model_adapters._shared.repository import Repository, described, find_repository, is_small
from ttmbench.model_adapters._shared.requirements import what_to_install
from ttmbench.types import ModelFiles

CONFIG = "open_clip_config.json"
WEIGHTS = "open_clip_model.safetensors"
FOLDER, HUB = "local-dir:", "hf-hub:"
_SAFE = ".safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_NAMES = (WEIGHTS, "open_clip_pytorch_model.safetensors", "model.safetensors")
_PICKLE_NAMES = ("open_clip_pytorch_model.bin", "pytorch_model.bin")
_SUFFIX = "-quickgelu"
_FIRST_TENSORS = ("visual.", "module.", "image_encoder.")  # model.safetensors of many repositories is transformers' own


Config = Mapping[str, Any]
"""Of an ``open_clip_config.json``, or its ``model_cfg``."""
Found = tuple[Config, ModelFiles, str | None, Repository | None]
"""Configuration, weights, the file that may not state its activation if open_clip does not know it, repository."""


@dataclass(frozen=True)
class Source:
    """The parts of a model, all on this machine.

    Attributes:
        model: as the user gave it.
        config: ``model_cfg`` and ``preprocess_cfg``, as in an ``open_clip_config.json``.
        files: the weights; beside them other repositories that the text tower needs.
        tokenizer: folder of the Hub's tokenizer; None for open_clip's own.
        text_config: folder of the configuration of a text tower of transformers, if it has one.
        notes: for readers of its scores.
    """

    model: str
    config: Config
    files: ModelFiles
    tokenizer: Path | None
    text_config: Path | None
    notes: tuple[str, ...]

    @property
    def weights(self) -> Path:
        """The file of weights."""
        return self.files.folder / self.files.weights[0]


def find(asked: OpenClipFiles, quick_gelu: bool | None = None) -> Source:
    """Looks a model up and fetches its parts.

    Args:
        asked: its name, and what may be done to get it.
        quick_gelu: the activation; None for that of the configuration.

    Raises:
        UsageError: unknown model or tag, no weights named, or weights in a format that is not read.
        DataError: configuration, weights or tokenizer are unavailable or damaged.
    """
    model, pretrained = asked.model, asked.pretrained
    look_up = _from_folder if model.startswith(FOLDER) else _from_hub if model.startswith(HUB) else _from_library
    if look_up is _from_library:
        model = model.replace("/", "-")
    elif pretrained is not None:
        raise UsageError(f"{model} brings its own weights; leave pretrained={pretrained} out")
    config, files, silent, repository = look_up(asked)
    model_config: Config = config["model_cfg"]
    notes: tuple[str, ...] = ()
    if quick_gelu is not None:
        model_config = with_activation(model_config, quick_gelu, model)
    elif silent is not None:
        notes = note_on_activation(model_config, silent)
    is_folder, beside = repository is not None and repository.is_folder, dict[str, ModelFiles]()

    def fetched(name: str) -> Path:
        """As open_clip: from a folder, or from the weights' own repository, where that contains the files."""
        if repository is not None and (is_folder or repository.name.lower() == name.lower()):
            return repository.get(filter(is_small, repository.files))
        if name not in beside:
            other = find_repository(name, offline=asked.offline)
            beside[name] = ModelFiles(name, other.get(filter(is_small, other.files)), (), other.commit)
        return beside[name].folder

    tokenizer, tower = (model_config["text_cfg"].get(key) for key in ("hf_tokenizer_name", "hf_model_name"))
    folders = fetched(tokenizer) if tokenizer else None, fetched(tower) if tower and not is_folder else None
    files = replace(files, beside=tuple(beside.values()))
    return Source(model, {**config, "model_cfg": model_config}, files, *folders, notes)


def build(source: Source) -> open_clip.CLIP:
    """The model with its weights, float32, on the CPU.

    Raises:
        DataError: the configuration is wrong, or the weights do not fit it.
    """
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
    try:
        with only_tensors():
            open_clip.load_checkpoint(model, str(source.weights), weights_only=True)
    except Exception as error:
        raise DataError(f"{source.weights} does not fit {source.model} ({described(error)})") from error
    return model


def tokenizer_of(source: Source) -> open_clip.SimpleTokenizer | HFTokenizer:
    """The tokenizer that open_clip would take, from files on this machine; DataError if they are missing or damaged."""
    text = source.config["model_cfg"]["text_cfg"]
    options = {"context_length": text.get("context_length", 77), **text.get("tokenizer_kwargs", {})}
    if source.tokenizer is None:
        return _own_tokenizer(json.dumps(options))
    try:
        mode = text.get("tokenizer_mode")
        return HFTokenizer(str(source.tokenizer), tokenizer_mode=mode, local_files_only=True, **options)
    except Exception as error:
        command = what_to_install(error)
        why = described(error) if command is None else f"it needs `{command}`"
        raise DataError(f"the tokenizer of {source.model} cannot be loaded from {source.tokenizer} ({why})") from error


@functools.lru_cache(maxsize=4)
def _own_tokenizer(options: str) -> open_clip.SimpleTokenizer:
    """open_clip's own tokenizer, whose 49,000 merges take long to read."""
    return open_clip.SimpleTokenizer(**json.loads(options))


def write_config(config: Config, folder: Path) -> None:
    """Writes the file that ``local-dir:`` and ``hf-hub:`` read."""
    (folder / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")


def _from_folder(asked: OpenClipFiles) -> Found:
    name = asked.model.removeprefix(FOLDER)
    if not Path(name).is_dir():
        raise DataError(f"{asked.model}: there is no such folder")
    if not (Path(name) / CONFIG).is_file():
        raise DataError(f"{asked.model}: the folder has no {CONFIG}")
    repository = find_repository(name)
    endings = (_SAFE,) if asked.weights == "safetensors" else (_SAFE, *_PICKLES)
    others = sorted((file for file in repository.files if Path(file).suffix in endings), key=_safe_first)
    files = replace(_weights_in(repository, (), others, asked.model, asked), name=name)
    return _read_config(Path(name) / CONFIG), files, f"{CONFIG} of {asked.model}", repository


def _from_hub(asked: OpenClipFiles) -> Found:
    repo = asked.model.removeprefix(HUB)
    repository = find_repository(repo, asked.revision, offline=asked.offline)
    if CONFIG not in repository.files:
        hint = f"; --model hf --model_args pretrained={repo} loads models of transformers"
        raise DataError(f"{repo} has no {CONFIG}, so it is not a model of open_clip{hint}")
    config = _read_config(repository.get([CONFIG]) / CONFIG)
    silent = None if repo in gelu_repositories() else f"{CONFIG} of {asked.model}"
    return config, _weights_in(repository, (), (), asked.model, asked), silent, repository


def _from_library(asked: OpenClipFiles) -> Found:
    model, pretrained = asked.model.replace("/", "-"), asked.pretrained
    model_config = open_clip.get_model_config(model)
    if model_config is None:
        known = open_clip.list_models()
        hint = _near(model, known) or f"known: {_some(known)}"
        raise UsageError(f"open_clip has no model '{model}'; {hint}; others are {HUB}<id> and {FOLDER}<folder>")
    tags = open_clip.list_pretrained_tags_by_model(model)
    listed = f"tags: {_some(tags)}" if tags else "open_clip has no tags for it"
    if not pretrained:
        raise UsageError(f"{model} without weights is random; give pretrained=<tag or file of weights>; {listed}")
    tag = open_clip.get_pretrained_cfg(model, pretrained)
    config = {"model_cfg": model_config, "preprocess_cfg": merge_preprocess_dict(PreprocessCfg(), tag)}
    if not tag:
        path = _own_file(pretrained, model, _near(pretrained, tags) or listed, asked)
        return config, ModelFiles(pretrained, path.parent, (path.name,)), pretrained, None
    repo, _, file = tag["hf_hub"].rpartition("/")
    if not repo:
        raise DataError(f"the weights {pretrained} of {model} are not on the Hub, and are not fetched elsewhere")
    if tag.get(QUICK):
        model_config[QUICK] = True  # as these weights were trained; open_clip only warns
    repository = find_repository(repo, asked.revision, offline=asked.offline)
    named = (str(Path(file).with_suffix(_SAFE)), file) if file else ()
    return config, _weights_in(repository, named, (), f"{model} {pretrained}", asked), None, repository


def _weights_in(
    repository: Repository, named: Sequence[str], others: Iterable[str], model: str, asked: OpenClipFiles
) -> ModelFiles:
    """The first file whose tensors have open_clip's names, of names in this order, safetensors before pickles."""
    names = sorted(dict.fromkeys([*named, *_NAMES, *_PICKLE_NAMES, *others]), key=_safe_first)
    existing = [name for name in names if name in repository.files]
    refused = [name for name in existing if asked.weights == "safetensors" and not name.endswith(_SAFE)]
    for name in (name for name in existing if name not in refused):
        if _holds_open_clip(repository.get([name]) / name):
            return ModelFiles(repository.name, repository.get([name]), (name,), repository.commit)
    if refused:
        raise repository.refused(refused[0])
    if repository.folder is not None and not repository.is_folder:
        raise repository.lacking([WEIGHTS])
    raise DataError(f"{model}: {repository.name} has no weights of open_clip ({WEIGHTS} or {_PICKLE_NAMES[0]})")


def _own_file(pretrained: str, model: str, hint: str, asked: OpenClipFiles) -> Path:
    path = Path(pretrained)
    if path.suffix not in (_SAFE, *_PICKLES) and not path.is_file():
        raise UsageError(f"{model} has no weights '{pretrained}', and there is no such file; {hint}")
    if path.suffix not in (_SAFE, *_PICKLES):
        raise UsageError(f"pretrained={pretrained}: files of weights end in {_SAFE}, {', '.join(_PICKLES)}")
    if not path.is_file():
        raise DataError(f"pretrained={pretrained}: there is no such file")
    if asked.weights == "safetensors" and path.suffix != _SAFE:
        raise DataError(f"pretrained={pretrained} is not a safetensors file, which weights=safetensors asks for")
    _holds_open_clip(path)
    return path


def _holds_open_clip(path: Path) -> bool:
    """Whether a file's tensors have open_clip's names; DataError if it cannot be read."""
    if path.suffix != _SAFE:
        content = read_pickle(path)
        names = content.get("state_dict", content) if isinstance(content, Mapping) else ()
        return any(str(name).startswith(_FIRST_TENSORS) for name in names)
    try:
        with safe_open(path, framework="pt") as tensors:
            return any(name.startswith(_FIRST_TENSORS) for name in tensors.keys())
    except Exception as error:
        raise DataError(f"{path} cannot be read: it is damaged ({described(error)})") from error


def _read_config(path: Path) -> Config:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        merged = merge_preprocess_dict(PreprocessCfg(), config.get("preprocess_cfg", {}))
        model_config = config["model_cfg"]
        missing = [key for key in ("embed_dim", "vision_cfg", "text_cfg") if key not in model_config]
    except Exception as error:
        raise DataError(f"{path} is not a configuration of open_clip ({described(error)})") from error
    if missing:
        raise DataError(f"{path} is not a configuration of open_clip (model_cfg lacks {missing[0]})")
    return {"model_cfg": model_config, "preprocess_cfg": merged}


def _safe_first(name: str) -> bool:
    return not name.endswith(_SAFE)


def _near(name: str, known: Iterable[str]) -> str | None:
    names = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    near = get_close_matches(name.lower().replace("-", "_"), names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(names[match]) for match in near)}?" if near else None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def with_activation(model_config: Config, quick: bool, model: str) -> Config:
    """A ``model_cfg`` with QuickGELU or GELU; UsageError if its image tower is timm's, which has no such choice."""
    if model_config["vision_cfg"].get("timm_model_name"):
        raise UsageError(f"quick_gelu: the image tower of {model} is timm's, which has no such choice; leave it out")
    return {**model_config, QUICK: quick}


def note_on_activation(model_config: Config, what: str) -> tuple[str, ...]:
    """A note on an unknown activation, which ``what`` does not state.

    Empty if the ``model_cfg`` states it, or if open_clip has the architecture in one form only.
    """
    names = [name for name in open_clip.list_models() if name.endswith(_SUFFIX)]
    if model_config.get(QUICK) is not None:
        return ()
    if _towers(model_config) not in [_towers(open_clip.get_model_config(name)) for name in names]:
        return ()
    return (f"{what} does not state its activation, so it is computed with GELU. {ADVICE_ON_GELU}",)


def gelu_repositories() -> set[str]:
    """The Hub repositories whose weights were trained with GELU, as open_clip lists them."""
    tags = [open_clip.get_pretrained_cfg(*pair) for pair in open_clip.list_pretrained()]
    return {tag["hf_hub"].rpartition("/")[0] for tag in tags if tag.get("hf_hub") and not tag.get(QUICK)}


def _towers(model_config: Config) -> list[object]:
    """The architecture of both towers, without sizes that finetuning may change."""
    image = {**asdict(open_clip.CLIPVisionCfg()), **model_config["vision_cfg"]}
    text = {**asdict(open_clip.CLIPTextCfg()), **model_config["text_cfg"]}
    return [
        model_config["embed_dim"],
        *(image[name] for name in ("timm_model_name", "layers", "width", "head_width", "patch_size")),
        *(text[name] for name in ("hf_model_name", "layers", "width", "heads")),
    ]
