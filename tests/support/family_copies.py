"""Copies of models finetuned for compositionality and of further tags of open_clip, in the formats of their releases.

Real are names of repositories and files, commits, keys, prefixes and what lies beside the weights; weights are random.
`ARCHITECTURES` are small ones under the names that the copies are loaded by.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from support import hub_models, tiny_models
from support.hub_repos import made_up_commit, write_repository
from ttmbench.model_adapters import catalog
from ttmbench.types import AdapterSpec

Tensors = dict[str, torch.Tensor]
QUICK = {**tiny_models.OPEN_CLIP, "quick_gelu": True}
FORMS = ("ViT-B-32", "ViT-B-16", "ViT-L-14", "ViT-H-14", "ViT-H-14-378", "ViT-H-14-worldwide")
ARCHITECTURES = {
    f"{name}{end}": shape for name in FORMS for end, shape in (("", tiny_models.OPEN_CLIP), ("-quickgelu", QUICK))
}
RANK = 4
_KNOWN = json.loads(Path(catalog.__file__).with_name("named_models.json").read_text(encoding="utf-8"))
NAMES = {spec.name: spec for spec in catalog.adapters() if spec.name in {row["name"] for row in _KNOWN["finetuned"]}}
CODED = ("jina-clip-v2", "jina-embeddings-v4", "gme-qwen2-vl-2b")
REFUSED = [*(name for name, spec in NAMES.items() if spec.card and spec.card.refused), *CODED]
BY_HAND = [name for name, spec in NAMES.items() if spec.card and spec.card.page]


def write_architectures(folder: Path) -> Path:
    """Writes them as open_clip's ``add_model_config`` reads a folder."""
    folder.mkdir()
    for name, shape in ARCHITECTURES.items():
        (folder / f"{name}.json").write_text(json.dumps(shape), encoding="utf-8")
    return folder


def weights(seed: int, shape: Mapping[str, object] = QUICK) -> Tensors:
    """Random weights of an architecture, so large that the activation matters."""
    from open_clip import CLIP

    torch.manual_seed(seed)
    return {name: 3 * one if one.ndim > 1 else one.clone() for name, one in CLIP(**shape).state_dict().items()}


def training_checkpoint(tensors: Tensors, prefix: str = "module.") -> dict[str, object]:
    """As open_clip's trainer writes it: names behind ``module.``, an optimizer's state, a learning rate of numpy."""
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.5 * (1 + np.cos(np.pi * 3 / 10)) * 1e-6
    state = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    scaler = {"scale": 65536.0, "_growth_tracker": 0}
    return {"epoch": 5, "name": "run", "state_dict": state, "optimizer": optimizer.state_dict(), "scaler": scaler}


def openai_checkpoint(tensors: Tensors) -> dict[str, object]:
    """As a training with OpenAI's package writes it: key ``model``, and the settings of the training."""
    settings = argparse.Namespace(lr=1e-6, device="cuda", epochs=5)
    return {"model": tensors, "optimizer": training_checkpoint({})["optimizer"], "args": settings}


def with_factors(tensors: Tensors, seed: int = 7) -> Tensors:
    """The same with LoRA factors of rank 4 beside the weights of all linear layers, attention and convolutions."""
    torch.manual_seed(seed)
    result = dict(tensors)
    for name, weight in tensors.items():
        kernel = weight.shape[-1] if weight.ndim == 4 else 1
        layer = name.endswith((".out_proj.weight", ".c_fc.weight", ".c_proj.weight", "conv1.weight"))
        if layer or name.endswith("in_proj_weight"):
            stem = name.removesuffix("weight") if layer else f"{name}_"
            result[f"{stem}lora_A"] = torch.randn(RANK * kernel, weight.shape[1] * kernel)
            result[f"{stem}lora_B"] = torch.randn(weight.shape[0] * kernel, RANK * kernel)
    return result


def file_content(name: str) -> dict[str, object]:
    """What the file of weights of a named model holds, in the format of its release."""
    tensors = weights(3, ARCHITECTURES[NAMES[name].model_args["model"]])
    if name.startswith(("dac", "tsvlc", "fsc-clip-lora")):
        return training_checkpoint(with_factors(tensors))
    if name.startswith("con-clip"):
        return openai_checkpoint(tensors)
    if name == "clove":  # fewer text positions than the architecture has
        return training_checkpoint({**tensors, "positional_embedding": tensors["positional_embedding"][:16].clone()})
    if name == "cs-clip":
        return {f"model.{key}": tensor for key, tensor in tensors.items()}
    return training_checkpoint(tensors)


def _repository(root: Path, repo: str, commit: str) -> Path:
    return write_repository(root, "models", repo, {"main": commit}).folder / commit


def _checkpoints(root: Path, repo: str, commit: str, files: Mapping[str, str]) -> None:
    folder = _repository(root, repo, commit)
    for file, name in files.items():
        torch.save(file_content(name), folder / file)


def _of_open_clip(root: Path, repo: str, commit: str, *, quick: bool, pickled: bool = False) -> None:
    """Configuration and weights as open_clip's ``push_to_hf_hub`` writes them, without an activation."""
    file = "open_clip_pytorch_model.bin" if pickled else "open_clip_model.safetensors"
    tensors = weights(4, QUICK if quick else tiny_models.OPEN_CLIP)
    tiny_models.open_clip(_repository(root, repo, commit), files=[file], tensors=tensors)


def _of_transformers(
    root: Path, repo: str, commit: str, make: Callable[[Path], object], *, alone: bool = False
) -> None:
    """A model of transformers; ``alone`` without its tokenizer and preprocessing."""
    folder = _repository(root, repo, commit)
    make(folder)
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors", {"format": "pt"})
    for path in [path for path in folder.iterdir() if alone and path.name not in ("config.json", "model.safetensors")]:
        path.unlink()


def _with_code(root: Path, repo: str, commit: str) -> None:
    """A model that its repository's own code builds."""
    folder = _repository(root, repo, commit)
    code = "jinaai/jina-clip-implementation--"
    classes = {
        "AutoConfig": f"{code}configuration_clip.JinaCLIPConfig",
        "AutoModel": f"{code}modeling_clip.JinaCLIPModel",
    }
    config = {"model_type": "jina_clip", "architectures": ["JinaCLIPModel"], "auto_map": classes}
    modules = [{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({"logit_scale": torch.ones(1)}, folder / "model.safetensors", {"format": "pt"})


def repository_of(spec: AdapterSpec) -> str:
    """The repository on the Hub that a name's weights come from."""
    import open_clip

    place = str(spec.model_args.get("pretrained") or spec.model_args["model"])
    if "/" in place:
        return "/".join(place.removeprefix("hf-hub:").split("/")[:2])
    return str(open_clip.get_pretrained_cfg(spec.model_args["model"], place)["hf_hub"]).rpartition("/")[0]


def _writers() -> dict[str, Callable[[Path], None]]:
    """Repository -> what writes its copy below a root."""
    made: dict[str, Callable[..., None]] = {}
    files: dict[str, dict[str, str]] = {}
    commits = {OPENAI: made_up_commit(OPENAI)}
    for name, spec in NAMES.items():
        if name in BY_HAND or (spec.card and spec.card.refused) or name == "siglip2-b16":  # in `hub_models`
            continue
        repo, place = repository_of(spec), str(spec.model_args.get("pretrained", ""))
        commits[repo] = spec.model_args.get("revision") or made_up_commit(repo)
        if name in CODED:
            made[repo] = _with_code
        elif ".hf:" in spec.target:
            made[repo] = OF_TRANSFORMERS[name]
        elif place.startswith("hf-hub:") and not repo.startswith(("juns/", "Nano1337/")):
            file = place.removeprefix(f"hf-hub:{repo}").strip("/")
            files.setdefault(repo, {})[file or FILES[repo]] = name
        else:
            quick = spec.card is not None and spec.card.quick_gelu is True
            made[repo] = partial(_of_open_clip, quick=quick, pickled=repo.startswith("apple/"))
    made |= {repo: partial(_checkpoints, files=held) for repo, held in files.items()}
    made[OPENAI] = partial(_of_open_clip, quick=True)
    return {repo: partial(write, repo=repo, commit=commits[repo]) for repo, write in made.items()}


OPENAI = "timm/vit_base_patch32_clip_224.openai"
FILES = {  # the first two as a third party names them, the last one is not known
    **{"le723z/CE_CLIP": "CE_CLIP.pt", "wsdwJohn1231/DeGLA": "DeGLA.pt"},
    "wjpoom/SPEC-CLIP-ViT-B-32": "open_clip_pytorch_model.bin",
}
OF_TRANSFORMERS = {
    "read-clip": partial(_of_transformers, make=tiny_models.clip, alone=True),
    "siglip2-so400m": partial(_of_transformers, make=partial(hub_models.siglip, version=2)),
    "metaclip2-b32": partial(_of_transformers, make=tiny_models.metaclip2),
}
WRITERS = _writers()
