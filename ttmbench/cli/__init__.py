"""The command line: parsed with the standard library alone; each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from ttmbench.errors import TtmbenchError

COMMANDS = (
    "run",
    "score",
    "analyze",
    "compare",
    "leaderboard",
    "report",
    "export",
    "reproduce",
    "ls",
    "show",
    "validate",
    "download",
    "doctor",
    "new",
    "schema",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        arguments: without the program's name; by default those of the process.

    Returns:
        The exit code: 0 done, 1 a task failed, 2 usage or configuration, 3 an assertion or a reproduction does not
        hold, 4 data or weights out of reach, 130 interrupted.
    """
    from ttmbench.cli.options import build_parser, normalise

    # Threads that spin for long while they wait stall a run as soon as another program wants a core.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = False
    try:
        options = build_parser().parse_args(normalise(given))
        debug = getattr(options, "verbosity", "info") == "debug"
        code: int = options.execute(options)
        return code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    except TtmbenchError as error:
        if debug:
            traceback.print_exc()
        print(f"ttmbench: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ttmbench: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        message = " ".join(str(error).split())
        print(f"ttmbench: {type(error).__name__}: {message} (--verbosity debug shows where)", file=sys.stderr)
        return 1
