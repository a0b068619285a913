"""The parts of an open_clip model: its configuration, one file of weights, and its tokenizer.

A library name with a tag or a file, a Hub repository and a folder all become an ``open_clip_config.json``: there is one
way to build a model, and open_clip itself downloads nothing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory

import open_clip
from open_clip.tokenizer import HFTokenizer
from open_clip.transform import PreprocessCfg, merge_preprocess_dict
from safetensors import safe_open

from ttmbench._util.text import check_no_pointer
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.checkpoint_tensors import (
    POSITIONS,
    OtherPositionsError,
    fill,
    interpolated,
    merged,
    tensors_in,
    unwrapped,
)
from ttmbench.model_adapters._shared.contrastive import QUICK
from ttmbench.model_adapters._shared.open_clip_activation import (
    Config,
    gelu_repositories,
    like,
    note_on_activation,
    with_activation,
)
from ttmbench.model_adapters._shared.options import OpenClipFiles
from ttmbench.model_adapters._shared.pickled_weights import read_pickle
from ttmbench.model_adapters._shared.repository import Repository, described, find_repository, is_small
from ttmbench.model_adapters._shared.requirements import what_to_install
from ttmbench.model_adapters._shared.tokenizers import WHOLE, check_files, check_size, has_vocabulary, lacking
from ttmbench.types import ModelFiles

CONFIG = "open_clip_config.json"
WEIGHTS = "open_clip_model.safetensors"
FOLDER, HUB = "local-dir:", "hf-hub:"
_SAFE = ".safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_NAMES = (WEIGHTS, "open_clip_pytorch_model.safetensors", "model.safetensors")
_PICKLE_NAMES = ("open_clip_pytorch_model.bin", "pytorch_model.bin")
_FIRST_TENSORS = ("visual.", "module.", "image_encoder.")  # model.safetensors of many repositories is transformers' own
_OWN = "an architecture of your own is given by --model_args model_config=FILE.json"


Found = tuple[Config, ModelFiles, str | None, Repository | None]
"""Configuration, weights, the file that may not state its activation if open_clip does not know it, repository."""


@dataclass(frozen=True)
class Source:
    """The parts of a model, all on this machine.

    Attributes:
        model: as the user gave it.
        config: ``model_cfg`` and ``preprocess_cfg``, as in an ``open_clip_config.json``.
        files: the weights; beside them other repositories that the text tower or the weights need.
        tokenizer: folder of the Hub's tokenizer; None for open_clip's own.
        text_config: folder of the configuration of a text tower of transformers, if it has one.
        notes: for readers of its scores.
        asked: how the weights are combined.
        base: file of weights to interpolate with, if so.
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
    """Looks a model up and fetches its parts.

    Args:
        asked: its name, and what may be done to get it.
        quick_gelu: the activation; None for that of the configuration.

    Raises:
        UsageError: unknown model or tag, no weights named, or weights in a format that is not read.
        DataError: configuration, weights or tokenizer are unavailable or damaged.
    """
    model = _name(asked)
    look_up = _from_folder if model.startswith(FOLDER) else _from_hub if model.startswith(HUB) else _from_library
    if look_up is not _from_library and asked.pretrained is not None:
        raise UsageError(f"{model} brings its own weights; omit pretrained={asked.pretrained}")
    config, files, silent, repository = look_up(asked)
    model_config: Config = config["model_cfg"]
    base = None if asked.interpolate is None else _base_of(asked)
    if base is not None:
        model_config = _with_positions_of(files.folder / files.weights[0], model_config)
    notes: tuple[str, ...] = ()
    if quick_gelu is not None:
        model_config = with_activation(model_config, quick_gelu, model)
    elif silent is not None:
        notes = note_on_activation(model_config, silent)
    is_folder, beside = repository is not None and repository.is_folder, dict[str, ModelFiles]()
    if base is not None:
        beside[base.name] = base

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
    config = {**config, "model_cfg": model_config}
    base_file = None if base is None else base.folder / base.weights[0]
    return Source(model, config, files, *folders, notes, asked, base_file)


def build(source: Source) -> tuple[open_clip.CLIP, tuple[str, ...]]:
    """The model with its weights, float32, on the CPU, and notes on weights that were changed.

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
    asked, path = source.asked, source.weights
    tensors = merged(tensors_in(path), asked.lora_alpha, str(path))
    if source.base is not None:
        tensors = interpolated(tensors_in(source.base), tensors, asked.interpolate or 0.0)
    try:
        resampled = fill(model, tensors, asked.resample_positions)
    except OtherPositionsError as error:
        raise DataError(f"{path} does not fit {source.model}: {error}; {_fitting(source, error)}") from error
    except Exception as error:
        hint = "" if source.model.startswith((FOLDER, HUB)) else f"; {_OWN}"
        raise DataError(f"{path} does not fit {source.model} ({described(error)}){hint}") from error
    return model, tuple(f"resample_positions changed the position embeddings {change}" for change in resampled)


def _fitting(source: Source, error: OtherPositionsError) -> str:
    """Which architecture has the positions of a file."""
    model_config, pixels, length = source.config["model_cfg"], error.pixels, error.context_length
    changes = [f"text_cfg.context_length {length}"] if length is not None else []
    if pixels is not None:
        named = model_config["vision_cfg"].get("timm_model_name")
        changes.append(f"a vision_cfg.timm_model_name for {pixels} px" if named else f"vision_cfg.image_size {pixels}")
    names = like(model_config, pixels, length) if changes else []
    where = CONFIG if source.model.startswith((FOLDER, HUB)) else "model_config=FILE.json"
    advice = [f"model={name} fits" for name in names[:3]] or [f"{' and '.join(changes)} fits ({where})"]
    if not source.asked.resample_positions:
        advice.append("resample_positions=true resamples them, which changes scores")
    return "; ".join(advice)


def tokenizer_of(source: Source) -> open_clip.SimpleTokenizer | HFTokenizer:
    """The tokenizer that open_clip would take, from files on this machine; DataError if they are missing or damaged."""
    text = source.config["model_cfg"]["text_cfg"]
    options = {"context_length": text.get("context_length", 77), **text.get("tokenizer_kwargs", {})}
    if source.tokenizer is None:
        own = _own_tokenizer(json.dumps(options))
        check_size(own, text.get("vocab_size"), source.model)
        return own
    try:
        mode = text.get("tokenizer_mode")
        made = HFTokenizer(str(source.tokenizer), tokenizer_mode=mode, local_files_only=True, **options)
    except Exception as error:
        command = what_to_install(error)
        why = described(error) if command is None else f"it needs `{command}`"
        if command is None and not has_vocabulary(source.tokenizer):
            raise lacking(source.model, source.tokenizer, [WHOLE]) from error
        raise DataError(f"the tokenizer of {source.model} cannot be loaded from {source.tokenizer} ({why})") from error
    check_files(made.tokenizer, source.tokenizer, source.model)
    check_size(made.tokenizer, text.get("vocab_size"), source.model)
    return made


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
        hint = f"; --model hf --model_args pretrained={repo} loads models of transformers, and "
        hint += f"model=NAME,pretrained={HUB}{repo} weights of an architecture that open_clip names"
        raise DataError(f"{repo} has no {CONFIG}, so it is not a model of open_clip{hint}")
    config = _read_config(repository.get([CONFIG]) / CONFIG)
    silent = None if repo in gelu_repositories() else f"{CONFIG} of {asked.model}"
    return config, _weights_in(repository, (), (), asked.model, asked), silent, repository


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
        path = _own_file(pretrained, model, _near(pretrained, tags) or listed, asked)
        return config, ModelFiles(pretrained, path.parent, (path.name,)), silent, None
    repo, _, file = tag["hf_hub"].rpartition("/")
    if not repo:
        raise DataError(f"the weights {pretrained} of {model} are not on the Hub, and are not fetched elsewhere")
    if tag.get(QUICK):
        model_config = {**model_config, QUICK: True}  # as these weights were trained; open_clip only warns
    config["model_cfg"] = model_config
    repository = find_repository(repo, asked.revision, offline=asked.offline)
    named = (str(Path(file).with_suffix(_SAFE)), file) if file else ()
    return config, _weights_in(repository, named, (), f"{model} {pretrained}", asked), None, repository


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
        hint = _near(model, known) or f"known: {_some(known)}"
        raise UsageError(f"open_clip has no model '{model}'; {hint}; others are {HUB}<id> and {FOLDER}<folder>; {_OWN}")
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
    return _weights_in(repository, (), others, f"{HUB}{place}", asked)


def _base_of(asked: OpenClipFiles) -> ModelFiles:
    """The weights to interpolate with, under the same architecture."""
    if _name(asked).startswith((FOLDER, HUB)):
        raise UsageError("interpolate needs the name of an architecture, or model_config, and pretrained")
    changes = {"pretrained": asked.base, "revision": None, "interpolate": None, "lora_alpha": None}
    return _from_library(asked.model_copy(update=changes))[1]


def _with_positions_of(path: Path, model_config: Config) -> Config:
    """A ``model_cfg`` for as many text positions as a file of weights has."""
    tensors = tensors_in(path)
    found = next((tensors[name] for name in (POSITIONS, f"text.{POSITIONS}") if name in tensors), None)
    if found is None:
        raise DataError(f"{path} has no {POSITIONS}, so its weights cannot be interpolated")
    return {**model_config, "text_cfg": {**model_config["text_cfg"], "context_length": len(found)}}


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
    check_no_pointer(path)
    if path.suffix != _SAFE:
        return any(name.startswith(_FIRST_TENSORS) for name in unwrapped(read_pickle(path)))
    try:
        with safe_open(path, framework="pt") as tensors:
            return any(name.startswith(_FIRST_TENSORS) for name in tensors.keys())
    except Exception as error:
        raise DataError(f"{path} cannot be read: it is damaged ({described(error)})") from error


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


def _safe_first(name: str) -> bool:
    return not name.endswith(_SAFE)


def _near(name: str, known: Iterable[str]) -> str | None:
    names = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    near = get_close_matches(name.lower().replace("-", "_"), names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(names[match]) for match in near)}?" if near else None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
