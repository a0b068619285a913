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
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef, TypeAlias

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

    class _Later(ModuleType):
        """A module that is imported at its first attribute access."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):  # inspection of module globals reads these and must not trigger the import
                raise AttributeError(name)
            return getattr(import_module(self.__name__), name)

    pd, torch = _Later("pandas"), _Later("torch")
    Image = ForwardRef("import_module('PIL.Image').Image", module=__name__)
    Traversable = ForwardRef("import_module('importlib.resources.abc').Traversable", module=__name__)
    ArrayLike = ForwardRef("import_module('numpy.typing').ArrayLike", module=__name__)
    Batch = ForwardRef("torch.Tensor | Mapping[str, torch.Tensor] | list[Any]", module=__name__)
    ImageLike = ForwardRef("import_module('PIL.Image').Image | np.ndarray | str | os.PathLike[str]", module=__name__)

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int, Real
else:
    Bool = Float = Int = Real = Annotated

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
