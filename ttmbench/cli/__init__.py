# PYTHON_ARGCOMPLETE_OK
"""The command line: parsed with the standard library alone; each command imports what it needs when it runs."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext

from ttmbench._util.console import (
    clear_bars,
    each_note_once,
    one_line,
    output_error,
    print_traceback,
    streams_at_hand,
    unwritten,
    warn,
)
from ttmbench._util.redact import redact
from ttmbench._util.third_party_errors import error_line
from ttmbench.errors import INTERRUPTED, TtmbenchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        arguments: without the program's name; by default those of the process.

    Returns:
        The exit code: 0 done, 1 a task failed, 2 usage or configuration, 3 an assertion or a reproduction does not
        hold, 4 data or weights out of reach, 130 interrupted.
    """
    # Threads that spin for long while they wait stall a run as soon as another program wants a core.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    gc.set_threshold(50_000)  # by default it looks through what imports make again and again: a tenth of a small run
    if "_ARGCOMPLETE" in os.environ:
        from ttmbench.cli.complete import complete

        complete()
    streams_at_hand()
    with each_note_once():
        code = _execute(list(sys.argv[1:] if arguments is None else arguments))
        try:
            missing = _unwritten(output_error())
        except KeyboardInterrupt:
            return INTERRUPTED
        return code or missing


def _execute(given: list[str]) -> int:
    """The exit code of a command line; its errors are printed."""
    from ttmbench._util.limits import check_limits
    from ttmbench.cli.addresses import READ, addresses_at_hand
    from ttmbench.cli.parser import build_parser, normalise

    debug = False
    shown, warnings.formatwarning = warnings.formatwarning, _one_line_warning
    try:
        try:
            words = normalise(given)
            options = build_parser(words[0] if words else "").parse_args(words)
        except SystemExit as stop:  # argparse has said what is wrong, or helped
            return stop.code if isinstance(stop.code, int) else 2
        debug = getattr(options, "verbosity", "info") == "debug"
        check_limits()
        with addresses_at_hand(words[0], options) if words[0] in READ else nullcontext():
            code: int = options.execute(options)
        return code
    except TtmbenchError as error:
        if debug:
            print_traceback()
        warn(_without(given, str(error)))
        return error.exit_code
    except KeyboardInterrupt as error:
        warn(f"interrupted {error}".strip())  # it says during which plugin's code it came
        return INTERRUPTED
    except BaseException as error:
        if debug:
            print_traceback()
        of_output = output_error() if isinstance(error, OSError) and error.filename is None else None
        if of_output is not None:
            return _unwritten(of_output)
        warn(f"{_without(given, error_line(error))} (--verbosity debug shows where)")
        return 1
    finally:
        warnings.formatwarning = shown


def _unwritten(error: OSError | None) -> int:
    """The exit code of a command whose output, by this error, could not be written: 0 if nobody wanted more of it."""
    if error is None or isinstance(error, BrokenPipeError):
        return 0
    warn(unwritten(error))
    return 1


def _without(arguments: Sequence[str], message: str) -> str:
    """A message without the secrets that were given on the command line."""
    from ttmbench._util.redact import GONE, secrets_of
    from ttmbench.config import parse_pairs

    for word in arguments:
        if "=" in word:
            try:
                pairs = parse_pairs(word.partition("=")[2] if word.startswith("--") else word)
            except TtmbenchError:
                continue
            for secret in secrets_of(pairs):
                message = message.replace(secret, GONE)
    return message


def _one_line_warning(message: Warning | str, *_: object, **__: object) -> str:
    clear_bars()
    return f"ttmbench: warning: {one_line(redact([str(message)]))}\n"
