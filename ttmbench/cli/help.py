"""``ttmbench help``: what ``--help`` prints, of the program or of a command."""

from __future__ import annotations

import argparse
from contextlib import suppress

from ttmbench.cli.parser import COMMANDS, build_parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench help``."""
    parser.add_argument(
        "command", nargs="?", choices=tuple(COMMANDS), metavar="COMMAND", help="Command name (default: overview)"
    )


def help(options: argparse.Namespace) -> int:
    """Prints the help."""
    words = [options.command, "--help"] if options.command else ["--help"]
    with suppress(SystemExit):  # which argparse ends with
        build_parser(options.command or "").parse_args(words)
    return 0
