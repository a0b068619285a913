"""``ttmbench validate RESULT``: submissions of results, one line a finding."""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ttmbench._util.console import echo, one_line
from ttmbench.data.catalog import select_tasks
from ttmbench.errors import AssertionNotMet, DataError, TtmbenchError
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.submission.findings import Findings

SHOWN = 40  # findings of one submission
_REFUSED = AssertionNotMet.exit_code


def is_submission(registry: Registry, word: str) -> bool:
    """Whether a word names results and no task: a JSON file, or a folder with some that has no task's name."""
    if word.endswith(".json"):
        return True
    if not Path(word).is_dir() or next(Path(word).rglob("*.json"), None) is None:
        return False
    try:
        return not select_tasks(registry, [word])
    except TtmbenchError:
        return True


def check_submissions(words: Sequence[str], registry: Registry, options: argparse.Namespace) -> int:
    """Checks documents, and folders of them.

    Args:
        words: files and folders.
        registry: models and tasks.
        options: ``schema_only``, ``data_dir``, ``allow_unchecked``.

    Returns:
        0 if all are sound, 3 if one is refused, 4 if a file is no results document.
    """
    from ttmbench.reproduce.submission.check import check_submission, refuse_copies

    worst = 0
    checked: dict[str, Findings] = {}
    for path in [path for word in words for path in _documents(Path(word))]:
        try:
            checked[str(path)] = check_submission(
                path, registry, read_command, with_data=not options.schema_only, data_dir=options.data_dir
            )
        except TtmbenchError as error:
            echo(str(error) if str(error).startswith(str(path)) else f"{path}: {error}", flush=True)
            worst = max(worst, error.exit_code)
    refuse_copies(checked)
    for name, findings in checked.items():
        worst = max(worst, _tell(name, findings, options.allow_unchecked))
    return worst


def read_command(command: str) -> Mapping[str, Any]:
    """The settings of a command line that a document states; what it names is neither read nor run.

    Args:
        command: its words, quoted as a shell needs it.

    Returns:
        Option -> value; ``config`` is the name of the file, if there is one.

    Raises:
        ValueError: it is no command of ttmbench that runs a model.
    """
    from ttmbench.cli.parser import build_parser, normalise
    from ttmbench.cli.run import LISTINGS, settings_of

    first, *rest = shlex.split(command) or [""]
    words = normalise(rest)
    if first != "ttmbench" or words[:1] != ["run"]:
        raise ValueError("it does not begin with ttmbench, or is no run")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            options = build_parser("run").parse_args(words)
    except SystemExit:
        raise ValueError(one_line(said.getvalue(), 200).removeprefix("ttmbench run: ") or "no command") from None
    if options.config:
        return {"config": options.config}
    if options.dry_run or options.tasks in LISTINGS:
        raise ValueError("it runs nothing")
    return settings_of(options)


def _documents(place: Path) -> list[Path]:
    """The document that is named, or those of a folder: what was never meant as results is passed over."""
    from ttmbench.report.load import is_something_else
    from ttmbench.results.reader import walk_documents

    if not place.is_dir():
        return [place]
    walked = walk_documents(place)
    found = [path for path, document in walked if not isinstance(document, str) or not is_something_else(path)]
    if not found:
        raise DataError(f"{place}: has no results document")
    return found


def _tell(name: str, findings: Findings, allow_unchecked: bool) -> int:
    """Prints what was found of one submission; its exit code."""
    refusing = findings.wrong if allow_unchecked else findings.found
    for one in refusing[:SHOWN]:
        echo(f"{name}: {one.line}", flush=True)
    if len(refusing) > SHOWN:
        echo(f"{name}: and {len(refusing) - SHOWN} more findings", flush=True)
    for note in findings.notes:
        echo(f"{name}: note: {one_line(note)}", flush=True)
    if refusing:
        return _REFUSED
    left = len(findings.unchecked)
    rest = f"; {left} {'thing' if left == 1 else 'things'} could not be checked" if left else ""
    echo(f"{name}: sound; {findings.compared} values agree with what they follow from{rest}", flush=True)
    return 0
