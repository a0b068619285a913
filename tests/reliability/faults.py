"""What goes wrong when files, processes or machines do: experiments that anyone can repeat.

    python tests/reliability/faults.py fuzz --files 10000
    python tests/reliability/faults.py kills --kills 200
    python tests/reliability/faults.py sweeps --kills 50
    python tests/reliability/faults.py trouble
    python tests/reliability/faults.py same
    python tests/reliability/faults.py flips --flips 10000
    python tests/reliability/faults.py cuts --files 1000

Each experiment is a subcommand with a module of its own; it prints a table, writes JSON on request and exits 1 if it
found a fault. What is drawn at random has a seed, which is drawn anew if ``--seed`` does not give it, and printed.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what tests share

# Subcommand -> module with main(options) -> exit code, and add_options(parser) if it has options of its own.
EXPERIMENTS = {"fuzz": "fuzzing", **{name: name for name in ("kills", "sweeps", "trouble", "same", "flips", "cuts")}}


def main() -> int:
    """Parses the command line and runs one experiment."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(required=True, metavar="EXPERIMENT")
    for name, module_name in EXPERIMENTS.items():
        module = import_module(module_name)
        command = commands.add_parser(name, help=module.__doc__.split("\n", 1)[0])
        if hasattr(module, "add_options"):
            module.add_options(command)
        command.add_argument(
            "--seed", type=int, default=secrets.randbelow(2**31), help="drawn anew if not given; printed"
        )
        command.add_argument("--json", type=os.path.abspath, help="where to write the report")
        command.set_defaults(main=module.main)
    options = parser.parse_args()
    code: int = options.main(options)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
