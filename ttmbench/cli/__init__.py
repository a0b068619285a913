"""The command line. Parsing needs the standard library only; each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ttmbench._util.console import (
    clear_bars,
    each_note_once,
    one_line,
    output_code,
    print_traceback,
    warn,
)
from ttmbench._util.third_party_errors import error_line
from ttmbench.errors import INTERRUPTED, TtmbenchError


def command() -> NoReturn:
    """Run the command line of this process, and end the process with its exit code."""
    sys.exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return the exit code that ``--help`` explains."""
    # A library's notices are for us (the weekly workflow), a hook's are for plugins. Filters of the user come first.
    warnings.filterwarnings("ignore", "(?!ttmbench_)", FutureWarning, append=True)
    for name in ("stdin", "stdout", "stderr"):  # closed before the program began (>&-, a daemon's); in this order,
        if getattr(sys, name) is None:  # so that no file of a run takes one of their numbers
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w", encoding="utf-8"))
    with each_note_once():
        code = _execute(list(sys.argv[1:] if arguments is None else arguments))
        try:
            return code or output_code() or 0
        except KeyboardInterrupt:
            return INTERRUPTED


def _execute(argv: list[str]) -> int:
    """Run a command line and print its error, if any; returns the exit code."""
    from ttmbench.cli.parser import parse, read_places
    from ttmbench.config import refuse_password

    debug = False
    shown, warnings.formatwarning = warnings.formatwarning, _one_line_warning
    try:
        refuse_password("the command", argv)
        try:
            options = parse(argv)
        except SystemExit as stop:  # argparse has printed the error or the help
            return stop.code if isinstance(stop.code, int) else 2
        debug = getattr(options, "verbosity", "info") == "debug"
        from ttmbench._util.file_io import limit

        limit("yaml_bytes")  # a wrong TTMBENCH_LIMITS is an error at once
        read_places(options)
        return int(options.execute(options))
    except TtmbenchError as error:
        if debug:
            print_traceback()
        warn(str(error))
        return error.exit_code
    except KeyboardInterrupt as error:
        warn(f"interrupted {error}".strip())  # names the plugin whose code was interrupted
        return INTERRUPTED
    except BaseException as error:
        if debug:
            print_traceback()
        if isinstance(error, OSError) and error.filename is None and (code := output_code()) is not None:
            return code
        warn(f"{error_line(error)} (--verbosity debug shows the traceback)")
        return 1
    finally:
        warnings.formatwarning = shown


def _one_line_warning(message: Warning | str, *_: object, **__: object) -> str:
    clear_bars()
    return f"ttmbench: warning: {one_line(str(message))}\n"
