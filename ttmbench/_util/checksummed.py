"""Safetensors files with a digest over every byte, the header's too: what a disk or a hand has changed is found."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.text import Unreadable, parse_json

if TYPE_CHECKING:
    import torch

_ABOUT, _SEAL = "ttmbench", "sha256"
_BLANK = "0" * 64
_SEALED = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_CHUNK = 1 << 22


class SealError(ValueError):
    """A file is not what was written; the message says so and names no file."""


def save_sealed(path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
    """Writes tensors and what they are.

    Args:
        path: the file.
        tensors: contiguous, on the CPU, none sharing memory with another: as `separated` makes them.
        about: JSON values, in the file's header.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors.torch import save_file

    save_file(dict(tensors), path, metadata={_ABOUT: json.dumps(about, sort_keys=True), _SEAL: _BLANK})
    start, _ = _seal_of(path)
    digest = _digest(path, start)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(digest.encode())


def separated(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors contiguous, on the CPU, and none in the memory of another; those that are so already are not copied."""
    apart: dict[str, torch.Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        here = tensor.detach().cpu().contiguous()
        memory = here.untyped_storage().data_ptr()
        apart[name] = here.clone() if memory in taken else here
        taken.add(memory)
    return apart


def load_sealed(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Reads a file that `save_sealed` wrote.

    Args:
        path: the file.

    Returns:
        The tensors, and what they are.

    Raises:
        SealError: it is not what was written.
        OSError: it cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    start, seal = _seal_of(path)
    if _digest(path, start) != seal:
        raise SealError("its digest does not fit its content")
    try:
        with safe_open(path, framework="pt") as file:
            about = parse_json((file.metadata() or {})[_ABOUT])
            return {name: file.get_tensor(name) for name in list(file.keys())}, about
    except (SafetensorError, Unreadable, KeyError) as error:
        raise SealError(" ".join(str(error).split())[:120]) from None


def _seal_of(path: Path) -> tuple[int, str]:
    """Where in the file its digest stands, and the digest."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, 100_000_000))  # as long as safetensors lets a header be
    found = list(_SEALED.finditer(header))
    if len(found) != 1:
        raise SealError("it has no digest")
    return 8 + found[0].start(1), found[0][1].decode()


def _digest(path: Path, start: int) -> str:
    """sha256 of the file's bytes, with zeros where its digest stands."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(start))
        digest.update(_BLANK.encode())
        file.seek(start + len(_BLANK))
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()
