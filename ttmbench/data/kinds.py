"""Kinds of tasks: which metrics each has, and the classes of those that classify."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["groups", "retrieval", "classification"]
"""What is asked of a model: to tell things apart inside groups, to find a caption's image and an image's captions among
all, or to name an image's class."""

SCOPES: dict[str, tuple[str, ...]] = {
    "groups": ("group", "global", "captions"),
    "retrieval": ("i2t", "t2i"),
    "classification": ("class",),
}
"""Kind of task -> scopes of the metrics that are defined for it."""

PACKAGED = re.compile(r"open_clip:[A-Z][A-Z0-9_]*")


class ClassSpec(BaseModel):
    """The classes of a classification task, and the prompts that name them.

    Attributes:
        names: of the classes, the label of an image being a place in this list or a name of it; or ``open_clip:NAME``,
            a list of the installed package.
        templates: prompts with ``{}`` where the name goes; or ``open_clip:NAME``.
        count: how many classes there are, where the list is not here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: str | list[str]
    templates: str | list[str] = ["a photo of a {}."]
    count: int | None = Field(None, ge=2)

    @model_validator(mode="after")
    def _is_whole(self) -> ClassSpec:
        for key, value in (("names", self.names), ("templates", self.templates)):
            if isinstance(value, str) and not PACKAGED.fullmatch(value):
                raise ValueError(f"classes.{key}: '{value}' is neither a list nor open_clip:NAME")
            if isinstance(value, list) and (not value or not all(one.strip() for one in value)):
                raise ValueError(f"classes.{key}: the list is empty, or an entry of it is")
        wrong = [one for one in self.templates if one.count("{}") != 1] if isinstance(self.templates, list) else []
        if wrong:
            raise ValueError(f"classes.templates: {wrong[0]!r:.80} should have {{}} once, where the name goes")
        if isinstance(self.names, str) and self.count is None:
            raise ValueError("classes.count is needed where the names come from a package")
        if isinstance(self.names, list) and self.count not in (None, len(self.names)):
            raise ValueError(f"classes.count is {self.count}, but {len(self.names)} names are listed")
        if self.n_classes < 2:
            raise ValueError("classes.names: at least two classes are needed")
        return self

    @property
    def n_classes(self) -> int:
        """How many classes there are; those of one name count apart."""
        return len(self.names) if isinstance(self.names, list) else self.count or 0
