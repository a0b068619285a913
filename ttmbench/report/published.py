"""What is known about published numbers that are shown beside runs: their sources, and the tasks that no run has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ttmbench.results.numbers import Number


@dataclass(frozen=True)
class PublishedSource:
    """Where published numbers come from.

    Attributes:
        title: of the paper or repository.
        url: where it can be read; None if unknown.
        rules: how it differs from a run here, such as in counting ties: a sentence by subject.
    """

    title: str
    url: str | None = None
    rules: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """Published numbers, and what is known about them.

    Attributes:
        numbers: under the names that tasks, metrics and models have here.
        sources: by `Number.file`.
        configs: task -> what its page states, under the keys of a task file; for a mean over tasks, of the first.
        parameters: model -> how many it has, as its authors or other repositories state.
        notes: (`Number.file`, name of the model) -> what is uncertain about which model it is.
    """

    numbers: Sequence[Number] = ()
    sources: Mapping[str, PublishedSource] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    parameters: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[tuple[str, str], str] = field(default_factory=dict)
