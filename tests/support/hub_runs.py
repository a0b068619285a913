"""What is run against the stand-in hub: every named model whose copy is small, the kinds, and the tasks of the hub."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from support import family_copies, hub_datasets, hub_models
from support.commands import Done
from support.hub_datasets import CONME, SUGARCREPE, VISMIN
from support.hub_repos import find_repository
from support.hub_server import HubServer
from ttmbench._util.third_party import quiet_hub
from ttmbench.data.task_file import find_task
from ttmbench.plugins.registry import build_registry

CLIP = "openai/clip-vit-base-patch32"
LLAVA, QWEN = "llava-hf/llava-1.5-7b-hf", "Qwen/Qwen3-VL-2B-Instruct"
SIGLIP_OF_TIMM = "timm/ViT-B-16-SigLIP"
NAMED = (
    *("siglip-b16", "siglip-l16", "clip-b16", "clip-b32"),
    *("blip-itc", "blip-itm", "blip2-itc", "blip2-itm", "flava-itc", "flava-itm"),
    *("vqascore-smolvlm-256m", "visualgpt-blip", "visualgpt-blip2", "visualgpt-git"),
    *("visualgpt-florence2", "visualgpt-kosmos2", "colqwen2", "colpali", "qwen3-vl-reranker-2b"),
    *("embeddinggemma-2", "colmodernvbert"),
    *("vilt-itm-flickr30k", "vilt-itm-coco", "bridgetower-itm", "xclip-b32", "videoprism-lvt-b"),
)
TAGS = {  # named models of open_clip, whose tags build full-size models; repository of the weights
    "open_clip-vit-b32": "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
    "open_clip-vit-b16": "laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K",
    "open_clip-vit-l14": "laion/CLIP-ViT-L-14-DataComp.XL-s13B-b90K",
    "open_clip-siglip-b16": SIGLIP_OF_TIMM,
    "open_clip-siglip2-b16": "timm/ViT-B-16-SigLIP2",
}
KINDS = (  # models without a name: kind, its arguments
    ("hf", "pretrained=openai/clip-vit-large-patch14"),
    ("hf", "pretrained=google/siglip2-base-patch16-224"),
    ("vqascore", f"pretrained={LLAVA}"),
    ("vqascore", f"pretrained={QWEN}"),
    ("choice", f"pretrained={LLAVA},max_tokens=2"),
    ("choice", f"pretrained={QWEN},side_by_side=true,max_tokens=2"),
    ("blind", "pretrained=gpt2"),
    *(("open_clip", f"model=hf-hub:{repo}") for repo in TAGS.values()),
    ("open_clip", f"model=hf-hub:{TAGS['open_clip-vit-b16']},revision=refs/pr/2"),
)
WEIGHTS = (".safetensors", ".bin", ".h5", ".msgpack", ".onnx", ".ot", ".tflite")
UNTRAINED = ("choice", "blind")
PAIRS = {"a": ("whatsup_a_left_right", "whatsup_a_on_under"), "b": ("whatsup_b_left_right", "whatsup_b_front_behind")}
TASKS = (
    *("colorswap", "winoground", "mmvp_vlm", *(f"sugarcrepe_{subset}" for subset in SUGARCREPE)),
    *("whatsup_a", *PAIRS["a"], "whatsup_b", *PAIRS["b"]),
    *(
        "bivlc",
        "rocketscience",
        *(f"conme_replace_{kind}" for kind in CONME),
        "vismin",
        *(f"vismin_{kind}" for kind in VISMIN),
    ),
    *("aro_vg_relation", "aro_vg_attribution", "aro_coco_order", "aro_flickr30k_order"),
    *("whatsup_coco_one", "whatsup_coco_two", "whatsup_vg_one", "whatsup_vg_two"),
)
LIMIT = 6
RAW = f"--tasks colorswap --limit {LIMIT} --device cpu --bootstrap_iters 0 --use_cache off"
TTM = f"{RAW} --ttm --ttm_args iterations=1,epochs=1"


@dataclass(frozen=True)
class Run:
    """A model, its arguments and where its results go."""

    model: str
    arguments: str
    output: Path
    offline: bool = False

    @property
    def command(self) -> str:
        """Without the word ttmbench; one iteration of TTM where the model trains."""
        what = RAW if self.model in UNTRAINED else TTM
        arguments = f"--model_args {self.arguments}" if self.arguments else ""
        offline = "--offline" if self.offline else ""
        return f"--model {self.model} {arguments} {what} -o {self.output} {offline}"

    @property
    def document(self) -> dict:
        return json.loads(self.output.read_text(encoding="utf-8"))


def runs(models: list[tuple[str, str]], folder: Path, *, offline: bool = False) -> list[Run]:
    """A run a model; results of online and offline ones lie beside one another."""
    how = "offline" if offline else "online"
    return [Run(model, given, folder / f"{at}_{how}.json", offline) for at, (model, given) in enumerate(models)]


def check_done(done: list[Done]) -> None:
    """All commands succeeded, and none showed a warning of a library's."""
    failed = [f"ttmbench {' '.join(one.argv)}\n{one.code}: {one.err}" for one in done if one.code != 0]
    assert not failed, "\n\n".join(failed)
    for one in done:
        assert "Traceback" not in one.err and "Warning" not in one.err, one.err


def check_same(online: list[Run], offline: list[Run]) -> None:
    """Runs without a network give the numbers of those with one, from the same files."""
    for one, other in zip(online, offline, strict=True):
        assert (one.model, one.arguments) == (other.model, other.arguments)
        first, second = one.document, other.document
        assert first["status"] == second["status"] == "done", one
        assert first["results"] == second["results"], one
        assert first["model_info"]["source"] == second["model_info"]["source"], one
        assert first["datasets"] == second["datasets"], one
        assert ("group_match,ttm" in first["results"]["colorswap"]) == (one.model not in UNTRAINED), one


def check_validated(done: Done, tasks: Sequence[str]) -> None:
    """Every group and every image of these tasks is there: counts are real, some images CMYK, grey, transparent."""
    assert done.code == 0, done.out
    for task in tasks:
        (line,) = [line for line in done.out.splitlines() if line.startswith(f"{task}: ")]
        assert "all images decode" in line, line


def copy_of(name: str, arguments: str = "") -> str:
    """The repository of the hub that a named model, a model of a kind, or a task comes from."""
    if arguments:
        _, _, repo = arguments.partition("=")
        repo = repo.removeprefix("hf-hub:").partition(",")[0]
        return {"gpt2": "openai-community/gpt2"}.get(repo, repo)
    registry = build_registry()
    if name in registry.adapters:
        return registry.adapters[name].model_args["pretrained"]
    source = find_task(registry, name).spec.source
    return str([one for one in source.get("of", [source]) if "path" in one][-1]["path"])


def commit_of(root: Path, repo: str) -> str:
    """The commit that main of a repository of data is at."""
    repository = find_repository(root, "datasets", repo) or find_repository(root, "models", repo)
    assert repository is not None, repo
    return repository.refs["main"]


def weights_of(hub: HubServer) -> list[str]:
    """``commit/file`` of all weights that were sent."""
    return ["/".join(name.split("/")[3:]) for name in hub.fetched("models/") if name.endswith(WEIGHTS)]


def write_tags(home: Path) -> None:
    """A file of winoground's that does not come from the hub, in the data folder."""
    folder = home / "data" / "winoground"
    folder.mkdir(parents=True)
    tags: dict[str, list[str]] = {str(number): [] for number in range(400)}
    (folder / "new_tag_assignments.json").write_text(json.dumps(tags), encoding="utf-8")


COPIES: dict[str, Callable[..., None]] = {**family_copies.WRITERS, **hub_models.WRITERS, **hub_datasets.WRITERS}


def write_copies(root: Path, names: Iterable[str]) -> None:
    """Writes copies of repositories below the root of the stand-in; a copy that exists stays as it is."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings(), quiet_hub():
            warnings.simplefilter("ignore")
            for name in names:
                if not any((root / kind / name).exists() for kind in ("models", "datasets")):
                    COPIES[name](root)
    finally:
        if shown:
            datasets.enable_progress_bars()
