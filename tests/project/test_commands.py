"""Commands that pages show and that need weights, data or minutes: every word of them is one that exists.

Lines of `ttmbench` are parsed by the real parser, and their models, tasks, tables and presets looked up; for other
programs the file, the option, the extra or the target is there. Commands in `console` blocks are run: `test_docs.py`.
"""

from __future__ import annotations

import shlex

import pytest
from support.checkout import PAGES, ROOT
from support.command_words import commands, problem


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_word_of_a_command_exists(page):
    for words in commands(page):
        assert problem(words, page.name) is None, (page.name, shlex.join(words), problem(words, page.name))
