"""Where an open_clip model comes from: its configuration, one file of weights, and its tokenizer.

A library name with a tag or a file, a hub repository and a folder all become the same thing, what open_clip keeps in an
``open_clip_config.json``, so that there is one way to build a model and nothing is downloaded behind our back.
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


@dataclass(frozen=True)
class Source:
    """What a model is made from.

    Attributes:
        config: ``model_cfg`` and ``preprocess_cfg``, as in an ``open_clip_config.json``.
        files: the weights; beside them what belongs to the text tower and lies in a repository of its own.
        model: as it was asked for.
        tokenizer: folder of the hub's tokenizer; None for open_clip's own.
        text_config: folder of the configuration of a text tower of transformers, if it has one.
        notes: what a reader of its scores should know.
    """

    config: Config
    files: ModelFiles
    model: str
    tokenizer: Path | None = None
    text_config: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def weights(self) -> Path:
        """The file of weights."""
        return self.files.folder / self.files.weights[0]


def find(asked: OpenClipFiles, quick_gelu: bool | None = None) -> Source:
    """Looks a model up and fetches what it is made from.

    Args:
        asked: its name, and what may be done to get it.
        quick_gelu: the activation; None for what the configuration states.

    Returns:
        Where it comes from; everything is on this machine then.

    Raises:
        UsageError: unknown model or tag, no weights named, or weights in a format that is not read.
        DataError: configuration, weights or tokenizer are out of reach or damaged.
    """
    model, pretrained = asked.model, asked.pretrained
    look_up = _from_folder if model.startswith(FOLDER) else _from_hub if model.startswith(HUB) else _from_library
    if look_up is not _from_library and pretrained is not None:
        raise UsageError(f"{model} brings its own weights; leave pretrained={pretrained} out")
    source, silent, repository = look_up(asked)
    config = source.config["model_cfg"]
    if quick_gelu is not None:
        config = with_activation(config, quick_gelu, source.model)
        source = replace(source, config={**source.config, "model_cfg": config})
    elif silent is not None:
        source = replace(source, notes=note_on_activation(config, silent))
    return _with_text_tower(source, repository, asked.offline)


def build(source: Source) -> open_clip.CLIP:
    """The model with its weights, float32, on the CPU.

    Raises:
        DataError: the configuration describes no model, or the weights do not fit it.
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
    """The tokenizer that open_clip would take, from files on this machine.

    Raises:
        DataError: its files are absent or damaged.
    """
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
    """open_clip's own tokenizer: the package holds its merges, and reading them takes longer than a small model."""
    return open_clip.SimpleTokenizer(**json.loads(options))


def write_config(config: Config, folder: Path) -> None:
    """Writes the file that ``local-dir:`` and ``hf-hub:`` read."""
    (folder / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")


Found = tuple[Source, str | None, Repository | None]
"""What a model is made from; the file that may not state its activation, if open_clip does not know it; and where the
weights are from."""


def _from_folder(asked: OpenClipFiles) -> Found:
    name = asked.model.removeprefix(FOLDER)
    folder = Path(name)
    if not folder.is_dir():
        raise DataError(f"{asked.model}: there is no such folder")
    if not (folder / CONFIG).is_file():
        raise DataError(f"{asked.model}: the folder has no {CONFIG}")
    repository = find_repository(name)
    endings = (_SAFE,) if asked.weights == "safetensors" else (_SAFE, *_PICKLES)
    others = sorted((file for file in repository.files if Path(file).suffix in endings), key=_safe_first)
    files = _weights_in(repository, (), others, asked.model, asked)
    source = Source(_read_config(folder / CONFIG), replace(files, name=name), asked.model)
    return source, f"{CONFIG} of {asked.model}", repository


def _from_hub(asked: OpenClipFiles) -> Found:
    repo = asked.model.removeprefix(HUB)
    repository = find_repository(repo, asked.revision, offline=asked.offline)
    if CONFIG not in repository.files:
        hint = f"; --model hf --model_args pretrained={repo} loads models of transformers"
        raise DataError(f"{repo} has no {CONFIG}, so it is no model of open_clip{hint}")
    config = _read_config(repository.get([CONFIG]) / CONFIG)
    source = Source(config, _weights_in(repository, (), (), asked.model, asked), asked.model)
    return source, None if repo in gelu_repositories() else f"{CONFIG} of {asked.model}", repository


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
    repository = None
    if tag:
        repo, _, file = tag["hf_hub"].rpartition("/")
        if not repo:
            raise DataError(f"the weights {pretrained} of {model} are not on the hub, and are not fetched elsewhere")
        if tag.get(QUICK):
            model_config[QUICK] = True  # what these weights were trained with; open_clip only warns
        repository = find_repository(repo, asked.revision, offline=asked.offline)
        named = (str(Path(file).with_suffix(_SAFE)), file) if file else ()
        files = _weights_in(repository, named, (), f"{model} {pretrained}", asked)
    else:
        path = _own_file(pretrained, _near(pretrained, tags) or listed, asked)
        files = ModelFiles(pretrained, path.parent, (path.name,))
    config = {"model_cfg": model_config, "preprocess_cfg": merge_preprocess_dict(PreprocessCfg(), tag)}
    return Source(config, files, model), None if tag else pretrained, repository


def _weights_in(
    repository: Repository, named: Sequence[str], others: Iterable[str], model: str, asked: OpenClipFiles
) -> ModelFiles:
    """The first file that holds tensors by open_clip's names: safetensors before pickles.

    Args:
        repository: where from.
        named: names that open_clip has for these weights.
        others: further names, asked last.
        model: what messages call it.
        asked: whether pickles are refused.
    """
    names = sorted(dict.fromkeys([*named, *_NAMES, *_PICKLE_NAMES, *others]), key=_safe_first)
    there = [name for name in names if name in repository.files]
    refused = [name for name in there if asked.weights == "safetensors" and not name.endswith(_SAFE)]
    for name in (name for name in there if name not in refused):
        if _holds_open_clip(repository.get([name]) / name):
            return ModelFiles(repository.name, repository.get([name]), (name,), repository.commit)
    if refused:
        raise DataError(
            f"{model}: {repository.name} holds its weights as {refused[0]} and not as safetensors, which "
            "weights=safetensors asks for; another revision may hold both (--model_args revision=...)"
        )
    if repository.folder is not None and not repository.is_folder:
        raise repository.lacking([WEIGHTS])
    raise DataError(f"{model}: {repository.name} has no weights of open_clip ({WEIGHTS} or {_PICKLE_NAMES[0]})")


def _with_text_tower(source: Source, repository: Repository | None, offline: bool) -> Source:
    """Fetches what the configuration names by id: a tokenizer, and the configuration of a text tower."""
    text = source.config["model_cfg"]["text_cfg"]
    beside: dict[str, ModelFiles] = {}

    def fetched(name: str) -> Path:
        """As open_clip does: a folder has it all, and what is in the weights' own repository is read from there."""
        if repository is not None and (repository.is_folder or repository.name.lower() == name.lower()):
            return repository.get(filter(is_small, repository.files))
        if name not in beside:
            other = find_repository(name, offline=offline)
            beside[name] = ModelFiles(name, other.get(filter(is_small, other.files)), (), other.commit)
        return beside[name].folder

    tokenizer, tower = text.get("hf_tokenizer_name"), text.get("hf_model_name")
    found = replace(
        source,
        tokenizer=fetched(tokenizer) if tokenizer else None,
        text_config=fetched(tower) if tower and not (repository is not None and repository.is_folder) else None,
    )
    return replace(found, files=replace(source.files, beside=tuple(beside.values())))


def _own_file(pretrained: str, hint: str, asked: OpenClipFiles) -> Path:
    path = Path(pretrained)
    if path.suffix not in (_SAFE, *_PICKLES) and not path.is_file():
        model = asked.model.replace("/", "-")
        raise UsageError(f"{model} has no weights '{pretrained}', and there is no such file; {hint}")
    if path.suffix not in (_SAFE, *_PICKLES):
        raise UsageError(f"pretrained={pretrained}: files of weights end in {_SAFE}, {', '.join(_PICKLES)}")
    if not path.is_file():
        raise DataError(f"pretrained={pretrained}: there is no such file")
    if asked.weights == "safetensors" and path.suffix != _SAFE:
        raise DataError(f"pretrained={pretrained} is no safetensors file, which weights=safetensors asks for")
    _holds_open_clip(path)
    return path


def _holds_open_clip(path: Path) -> bool:
    """Whether a file's tensors have open_clip's names; DataError if it holds no tensors that can be read."""
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
        raise DataError(f"{path} is no configuration of open_clip ({described(error)})") from error
    if missing:
        raise DataError(f"{path} is no configuration of open_clip (model_cfg lacks {missing[0]})")
    return {"model_cfg": model_config, "preprocess_cfg": merged}


def _safe_first(name: str) -> bool:
    return not name.endswith(_SAFE)


def _near(name: str, known: Iterable[str]) -> str | None:
    by_plain_name = {one.lower().replace("-", "_"): one for one in known}
    near = get_close_matches(name.lower().replace("-", "_"), by_plain_name, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(by_plain_name[one]) for one in near)}?" if near else None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def with_activation(model_config: Config, quick: bool, model: str) -> Config:
    """A ``model_cfg`` of open_clip with the activation that is asked for.

    Args:
        model_config: the ``model_cfg``.
        quick: whether it is QuickGELU.
        model: what messages call it.

    Raises:
        UsageError: its image tower is timm's, which does not read the setting.
    """
    if model_config["vision_cfg"].get("timm_model_name"):
        raise UsageError(f"quick_gelu: the image tower of {model} is timm's, which has no such choice; leave it out")
    return {**model_config, QUICK: quick}


def note_on_activation(model_config: Config, what: str) -> tuple[str, ...]:
    """The note for a model whose activation is not known.

    Args:
        model_config: its ``model_cfg``.
        what: the file or configuration that does not state it.

    Returns:
        One line; none if the configuration states it, or if open_clip has the architecture in one form only.
    """
    names = [name for name in open_clip.list_models() if name.endswith(_SUFFIX)]
    if model_config.get(QUICK) is not None:
        return ()
    if _towers(model_config) not in [_towers(open_clip.get_model_config(name)) for name in names]:
        return ()
    return (f"{what} does not state its activation, so it is computed with GELU. {ADVICE_ON_GELU}",)


def gelu_repositories() -> set[str]:
    """The hub repositories that open_clip itself knows to hold weights trained with GELU."""
    tags = [open_clip.get_pretrained_cfg(*pair) for pair in open_clip.list_pretrained()]
    return {tag["hf_hub"].rpartition("/")[0] for tag in tags if tag.get("hf_hub") and not tag.get(QUICK)}


def _towers(model_config: Config) -> list[object]:
    """What makes an architecture, without the sizes that finetuning may change: of images, and of captions."""
    image = {**asdict(open_clip.CLIPVisionCfg()), **model_config["vision_cfg"]}
    text = {**asdict(open_clip.CLIPTextCfg()), **model_config["text_cfg"]}
    return [
        model_config["embed_dim"],
        *(image[name] for name in ("timm_model_name", "layers", "width", "head_width", "patch_size")),
        *(text[name] for name in ("hf_model_name", "layers", "width", "heads")),
    ]
