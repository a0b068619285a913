"""Precomputed embeddings as a model: unit vectors from a file, and a pair of residual linear heads that TTM trains."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from ttmbench._util.arrays import LARGEST, read_arrays
from ttmbench.errors import DataError, UsageError
from ttmbench.model import StoredFeatures
from ttmbench.model_adapters._shared.contrastive import ContrastiveModel, Tower
from ttmbench.model_adapters._shared.options import EmbeddingsOptions, takes
from ttmbench.types import ModelFiles

IMAGES, CAPTIONS = "img", "cap"
SCALE, BIAS = "logit_scale", "logit_bias"
LABELS = ("image_of_caption", "label")  # ground truth of retrieval and of classification
DEFAULT_SCALE = 100.0
FILE_NAME = "embeddings.safetensors"


@takes(EmbeddingsOptions)
def load(asked: EmbeddingsOptions) -> EmbeddingsModel:
    """Reads precomputed embeddings; DataError for anything else, UsageError for a scale that is not positive."""
    file = _file(asked.path)
    arrays = read_arrays(file).arrays
    images, captions = (_features(file, arrays, name) for name in (IMAGES, CAPTIONS))
    if images.shape[1] != captions.shape[1]:
        raise DataError(f"{file}: '{IMAGES}' has dimension {images.shape[1]}, '{CAPTIONS}' has {captions.shape[1]}")
    scale = asked.logit_scale if asked.logit_scale is not None else _scalar(file, arrays, SCALE)
    bias = asked.logit_bias if asked.logit_bias is not None else _scalar(file, arrays, BIAS)
    scale = DEFAULT_SCALE if scale is None else float(scale)
    if not scale > 0:
        raise UsageError(f"logit_scale must be positive, got {scale}")
    model = EmbeddingsModel(images, captions, scale=scale, bias=bias, name=file.name, device=asked.device)
    if asked.logit_scale is None and _scalar(file, arrays, SCALE) is None:
        model.not_logits = f"{file.name} has no {SCALE}; state the model's with --model_args {SCALE}=X"
    model.labels = {name: arrays[name] for name in LABELS if name in arrays}
    return model


def locate(*, path: str) -> list[ModelFiles]:
    """The file of embeddings; DataError if it does not exist."""
    file = _file(path)
    if not file.is_file():
        raise DataError(f"{file} does not exist")
    return [ModelFiles(path, file.parent, (file.name,))]


def _file(path: str) -> Path:
    return Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)


class ResidualHeads(torch.nn.Module):
    """``x + W x`` for each side, with W zero at first: the model starts as the identity."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.image = torch.nn.Linear(dimension, dimension, bias=False)
        self.caption = torch.nn.Linear(dimension, dimension, bias=False)
        for head in (self.image, self.caption):
            torch.nn.init.zeros_(head.weight)


class EmbeddingsModel(StoredFeatures, ContrastiveModel[torch.Tensor]):
    """Precomputed embeddings as an adapter; temperature and bias are fixed, the two heads train."""

    def __init__(
        self, images: torch.Tensor, captions: torch.Tensor, *, scale: float, bias: float | None, name: str, device: str
    ) -> None:
        heads = ResidualHeads(images.shape[1])
        super().__init__(heads, (heads.image, heads.caption), device=device, dtype="fp32")
        self._images, self._captions = (one / one.norm(p=2, dim=-1, keepdim=True) for one in (images, captions))
        self._scale = torch.tensor(scale, device=self.device)
        self._offset = None if bias is None else torch.tensor(float(bias), device=self.device)
        self.name = name
        digest = hashlib.sha256()
        for side in (images, captions):
            digest.update(np.ascontiguousarray(side.numpy()).data)
        self._digest = digest.hexdigest()

    def fingerprint(self) -> Mapping[str, object]:
        """Digest of the features, temperature and bias."""
        return {
            "file": self.name,
            "features_sha256": self._digest,
            "logit_scale": float(self._scale),
            "logit_bias": None if self._offset is None else float(self._offset),
            "n_parameters": sum(parameter.numel() for parameter in self.parameters()),
        }

    def stored_images(self) -> torch.Tensor:
        """Unit vectors [all images, d]."""
        return self._images

    def stored_captions(self) -> torch.Tensor:
        """Unit vectors [all captions, d]."""
        return self._captions

    def save(self, folder: Path) -> None:
        """Writes the heads' output as a file of embeddings, to be loaded with ``path=<folder>``."""
        from safetensors.torch import save_file

        with torch.no_grad():
            tensors = {
                IMAGES: self.encode_images(self._images).cpu().contiguous(),
                CAPTIONS: self.encode_captions(self._captions).cpu().contiguous(),
                SCALE: self._scale.cpu(),
            }
        if self._offset is not None:
            tensors[BIAS] = self._offset.cpu()
        save_file(tensors, folder / FILE_NAME)

    def _tower(self, tower: Tower, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + tower(inputs)

    def _scale_and_bias(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._scale, self._offset


def _features(file: Path, arrays: Mapping[str, np.ndarray], name: str) -> torch.Tensor:
    if name not in arrays:
        raise DataError(f"{file}: has no array '{name}'; it has {', '.join(arrays) or 'none'}")
    array = arrays[name]
    if array.ndim != 2 or array.dtype.kind != "f" or 0 in array.shape:
        raise DataError(f"{file}: '{name}' must be floats [rows, d], got {array.dtype} {list(array.shape)}")
    if (np.abs(array) > LARGEST).any():
        raise DataError(f"{file}: '{name}' holds a number larger than {LARGEST:g}")
    features = np.ascontiguousarray(array, dtype=np.float32)
    length = np.linalg.norm(features.astype(np.float64), axis=1)
    wrong = ~(np.isfinite(length) & (length > 0))
    if wrong.any():
        raise DataError(f"{file}: row {int(np.argmax(wrong))} of '{name}' is zero or not finite")
    return torch.from_numpy(features)


def _scalar(file: Path, arrays: Mapping[str, np.ndarray], name: str) -> float | None:
    if name not in arrays:
        return None
    if arrays[name].size != 1 or not np.isfinite(arrays[name]).all():
        raise DataError(f"{file}: '{name}' must be one finite number")
    return float(arrays[name].reshape(()))
