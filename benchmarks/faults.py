"""What goes wrong when files, processes or machines do: experiments that anyone can repeat.

    python benchmarks/faults.py fuzz --files 10000 --seed 0

Each experiment is a subcommand with a module of its own; it prints a table, writes JSON on request and exits 1 if it
found a fault.
"""

from __future__ import annotations

import argparse
from importlib import import_module

EXPERIMENTS = {"fuzz": "fuzzing"}  # subcommand -> module with add_options(parser) and run(options) -> exit code


def main() -> int:
    """Parses the command line and runs one experiment."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(required=True, metavar="EXPERIMENT")
    for name, module_name in EXPERIMENTS.items():
        module = import_module(module_name)
        command = commands.add_parser(name, help=module.__doc__.split("\n", 1)[0])
        module.add_options(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args()
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
