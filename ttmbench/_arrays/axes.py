"""Annotations of arrays with their axes: jaxtyping's where a program has it check them, else the arrays'.

To import jaxtyping takes a fifth of the time in which a misspelt name is answered. Who has it check calls imported it
before this package.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int, Real
else:

    class _Array:
        def __class_getitem__(cls, kind_and_axes: tuple[Any, str]) -> Any:
            return kind_and_axes[0]

    Bool = Float = Int = Real = _Array

__all__ = ["Bool", "Float", "Int", "Real"]
