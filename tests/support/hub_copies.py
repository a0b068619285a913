"""Every repository that the stand-in hub can hold, and how its copy is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from support import hub_datasets, hub_models

_CLIP_32, _CLIP_16 = "openai/clip-vit-base-patch32", "openai/clip-vit-base-patch16"
_CLIP_L = "openai/clip-vit-large-patch14"


def _copies() -> dict[str, Callable[[Path], None]]:
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
    found: dict[str, Callable[[Path], None]] = {repo: partial(_of_model, write, repo) for repo, write in models}
    found |= {"stanfordnlp/colorswap": hub_datasets.colorswap}
    return found


def _of_model(write: Callable[..., None], repo: str, root: Path) -> None:
    write(root, repo)


COPIES = _copies()


def write_copies(root: Path, names: Iterable[str] | None = None) -> None:
    """Writes these copies, or all; a copy that is there stays as it is."""
    for name in COPIES if names is None else names:
        if not any((root / kind / name).exists() for kind in ("models", "datasets")):
            COPIES[name](root)
