"""Commands that pages show and that need weights, data or minutes: every word of them is one that exists.

Lines of `ttmbench` are parsed by the real parser, and their models, tasks, tables and presets looked up; for other
programs the file, the option, the extra or the target is there. Commands in `console` blocks are run: `test_docs.py`.
"""

from __future__ import annotations

import shlex

import pytest
from support.command_words import commands, problem
from support.pages import PAGES, ROOT

SHOWN = [(page, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_word_of_a_command_exists(page):
    for words in commands(page):
        assert problem(words, page.name) is None, (page.name, shlex.join(words), problem(words, page.name))


def test_commands_are_found():
    programs = [words[0] for _, words in SHOWN]
    assert programs.count("ttmbench") > 80 and programs.count("python") > 15 and programs.count("pip") > 5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ttmbench --model tiny-clip --tasks shapes_color --tm", "is no command line"),
        ("ttmbench --model tiny-clap --tasks shapes_color", "no model tiny-clap"),
        ("ttmbench --model tiny-clip --tasks shapes_colour", "unknown task 'shapes_colour'"),
        ("ttmbench reproduce ttm_table99", "no table ttm_table99"),
        ("ttmbench show nothing", "unknown task 'nothing'"),
        ("ttmbench download nothing", "unknown task 'nothing'"),
        ("ttmbench score x.npy --task nothing", "unknown task 'nothing'"),
        ("python scripts/nothing.py", "no file scripts/nothing.py"),
        ("python scripts/docs/reference.py paint", "scripts/docs/reference.py knows no paint"),
        ("python tests/reliability/faults.py kills --deaths 200", "tests/reliability/faults.py knows no --deaths"),
        ("pip install -e '.[nothing]'", "no extra nothing"),
        ("python -m pytest tests/nothing.py", "no file tests/nothing.py"),
        ("python -m pytest tests/cli/test_cli.py::test_nothing", "tests/cli/test_cli.py has no test_nothing"),
        ("python -m pytest tests/cli -k 'help or nothing_at_all'", "no test is named nothing_at_all"),
        ("pip install numpy", "numpy is not this package"),
        ("make nothing", "no target nothing"),
        ("curl x", "no program curl is known here"),
    ],
)
def test_a_word_that_does_not_exist_is_found(line, said, capsys):
    found = problem(shlex.split(line))
    assert found is not None and found.startswith(said)
