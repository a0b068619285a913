"""Lazy names for annotations whose modules are slow to import.

Annotations are strings until `typing.get_type_hints` evaluates them; only then are torch and Pillow imported for
``torch``, ``Image`` and ``Batch``. ``Float[np.ndarray, ...]`` is jaxtyping's type if the program has already imported
jaxtyping, as test suites that check shapes do, else the plain array type: the import would slow down every command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ForwardRef, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    import pandas as pd
    import torch
    from numpy.typing import ArrayLike
    from PIL.Image import Image

    Batch: TypeAlias = torch.Tensor | Mapping[str, torch.Tensor] | list[Any]
    """Prepared inputs: a tensor, tensors by name, or a list of anything, with one row per image or caption."""

    ImageLike: TypeAlias = Image | np.ndarray | str | os.PathLike[str]
    """An image: a Pillow image, an array uint8 [height, width, 3], or the path of a file."""
else:

    class _Later:
        """A module that is imported at its first attribute access."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):  # inspection of module globals reads these and must not trigger the import
                raise AttributeError(name)
            return getattr(import_module(self._name), name)

    def _later(expression: str) -> ForwardRef:
        return ForwardRef(expression, module=__name__)

    pd, torch = _Later("pandas"), _Later("torch")
    _image, _resources, _numpy = _Later("PIL.Image"), _Later("importlib.resources.abc"), _Later("numpy.typing")
    Image, Traversable, ArrayLike = _later("_image.Image"), _later("_resources.Traversable"), _later("_numpy.ArrayLike")
    Batch = _later("torch.Tensor | Mapping[str, torch.Tensor] | list[Any]")
    ImageLike = _later("_image.Image | np.ndarray | str | os.PathLike[str]")

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int, Real
else:

    class _Array:
        def __class_getitem__(cls, kind_and_axes: tuple[Any, str]) -> Any:
            return kind_and_axes[0]

    Bool = Float = Int = Real = _Array

__all__ = [
    "ArrayLike",
    "Batch",
    "Bool",
    "Float",
    "Image",
    "ImageLike",
    "Int",
    "Real",
    "Traversable",
    "pd",
    "torch",
]
