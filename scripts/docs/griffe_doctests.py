"""Examples of docstrings as code on the site: a doctest that stands outside of a section is plain text to Markdown."""

from __future__ import annotations

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", flags=re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts every doctest, up to the next empty line, into a fenced block."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Called for every module, class and function."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)
