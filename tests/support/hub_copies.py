"""Every repository that the stand-in hub can hold, and how its copy is written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from support import hub_datasets, hub_models, hub_models_chat, hub_models_fused, hub_models_open_clip, hub_sets
from support.hub_datasets import made_up_commit

_CLIP_32, _CLIP_16 = "openai/clip-vit-base-patch32", "openai/clip-vit-base-patch16"
_CLIP_L = "openai/clip-vit-large-patch14"


def _copies() -> dict[str, Callable[..., None]]:
    clip, siglip = hub_models.clip, hub_models.siglip
    main_32, safe_32 = "3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268", "c237dc49a33fc61debc9276459120b7eac67e7ef"
    main_16, safe_16 = "57c216476eefef5ab752ec549e440a49ae4ae5f3", "5ef227a78de3f75873f373246dac80def63b0003"
    siglip_b, siglip_l = "7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed", "d0da9f876e7d66b4e250cd2450c3ba2ce735e447"
    siglip_2 = "75de2d55ec2d0b4efc50b3e9ad70dba96a7b2fa2"
    models = [
        (_CLIP_32, partial(clip, main=main_32, patch=32, safe=("refs/pr/21", safe_32))),
        (_CLIP_16, partial(clip, main=main_16, patch=16, safe=("refs/pr/17", safe_16), seed=1)),
        (_CLIP_L, partial(clip, main="32bd64288804d66eefd0ccbe215aa642df71cc41", patch=14, seed=2)),
        ("google/siglip-base-patch16-224", partial(siglip, main=siglip_b, side=224)),
        ("google/siglip-large-patch16-256", partial(siglip, main=siglip_l, side=256, seed=1)),
        ("google/siglip2-base-patch16-224", partial(siglip, main=siglip_2, side=224, version=2)),
    ]
    models += [*_fused_and_chat(), *_open_clip()]
    found: dict[str, Callable[..., None]] = {repo: partial(_of_model, write, repo) for repo, write in models}
    subsets = {f"HuggingFaceM4/SugarCrepe_{one}": one for one in hub_datasets.SUGARCREPE}
    return {
        **found,
        "stanfordnlp/colorswap": hub_datasets.colorswap,
        "facebook/winoground": hub_datasets.winoground,
        "ServiceNow/whatsup_all": hub_datasets.whatsup,
        "MMVP/MMVP_VLM": hub_datasets.mmvp,
        **hub_sets.COPIES,
        "ILSVRC/imagenet-1k": hub_datasets.imagenet,
        **{repo: partial(hub_datasets.sugarcrepe, subset=subset) for repo, subset in subsets.items()},
    }


def _fused_and_chat() -> list[tuple[str, Callable[..., None]]]:
    fused, chat = hub_models_fused, hub_models_chat
    captions = ("refs/pr/50", "4d828b6083e66786427fc15ccba5d7b8ff028a0c")
    itm, itm_older = "520bf73fd0ef6ccce791cd3f06908040aef2d8cc", "d3788a04efa0f9e897305f5b9d9dedeaa3afb99d"
    smol, smol_newer = "7e3e67edbbed1bf9888184d9df282b700a323964", "cee7dc33d83ff2ddec17238b7aba85145169e631"
    blip_itm, blip_captions = "bed8ad38cb2d04a5a4bdf2d071b3c3c0a4aa724c", "82a37760796d32b1411fe092ab5d4e227313294b"
    opt, flava = "59a1ef6c1e5117b3f65523d1c6066825bcf315e3", made_up_commit("facebook/flava-full")
    llava, qwen = "b234b804b114d9e37bb655e11cbbb5f5e971b7a9", "89644892e4d85e24eaac8bacfd4f463576704203"
    gpt2 = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
    return [
        ("Salesforce/blip-itm-base-coco", partial(fused.blip, main=blip_itm, captioner=False)),
        (
            "Salesforce/blip-image-captioning-base",
            partial(fused.blip, main=blip_captions, captioner=True, safe=captions),
        ),
        ("Salesforce/blip2-itm-vit-g", partial(fused.blip2_itm, main=itm, older=itm_older)),
        ("Salesforce/blip2-opt-2.7b", partial(fused.blip2_opt, main=opt)),
        ("facebook/flava-full", partial(fused.flava, main=flava)),
        ("HuggingFaceTB/SmolVLM-256M-Instruct", partial(chat.smolvlm, main=smol, newer=smol_newer)),
        ("llava-hf/llava-1.5-7b-hf", partial(chat.llava, main=llava)),
        ("Qwen/Qwen3-VL-2B-Instruct", partial(chat.qwen3_vl, main=qwen)),
        ("openai-community/gpt2", partial(chat.gpt2, main=gpt2)),
    ]


def _open_clip() -> list[tuple[str, Callable[..., None]]]:
    laion, timm, safe = hub_models_open_clip.laion, hub_models_open_clip.timm_siglip, "open_clip_model.safetensors"
    b32, b16 = "1a25a446712ba5ee05982a381eed697ef9b435cf", "d110532e8d4ff91c574ee60a342323f28468b287"
    b16_safe = ("refs/pr/2", "05fa70d888b3dcddcaeb5906c71e35e736bc8d42")
    l14 = "84c9828e63dc9a9351d1fe637c346d4c1c4db341"
    siglip, siglip2 = "41f575766f40e752fdd1383e9565b7f02388c1c4", "eee10eff6dd8cabae2d7f379d4e8cfcd352030aa"
    return [
        ("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", partial(laion, main=b32, patch=32, safe=safe)),
        ("laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K", partial(laion, main=b16, patch=16, pull=b16_safe)),
        ("laion/CLIP-ViT-L-14-DataComp.XL-s13B-b90K", partial(laion, main=l14, patch=14)),
        ("timm/ViT-B-16-SigLIP", partial(timm, main=siglip, version=1)),
        ("timm/ViT-B-16-SigLIP2", partial(timm, main=siglip2, version=2)),
    ]


def _of_model(write: Callable[..., None], repo: str, root: Path, **how: Any) -> None:
    write(root, repo, **how)


COPIES = _copies()


def write_copies(root: Path, names: Iterable[str] | None = None, **how: Any) -> None:
    """Writes these copies, or all; a copy that is there stays as it is.

    Args:
        root: of the stand-in hub.
        names: repositories.
        how: for all of them; ``architecture=NAME`` makes open_clip's as large as its model of that name.
    """
    with _quietly():
        for name in COPIES if names is None else names:
            if not any((root / kind / name).exists() for kind in ("models", "datasets")):
                COPIES[name](root, **how)


@contextmanager
def _quietly() -> Iterator[None]:
    """The libraries that write copies show bars, and advise about what is old in them."""
    import datasets

    from ttmbench.model_adapters._shared.repository import quiet_hub

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings(), quiet_hub():
            warnings.simplefilter("ignore")
            yield
    finally:
        if shown:
            datasets.enable_progress_bars()
