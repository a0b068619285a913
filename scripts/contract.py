"""What programs, plugins and readers of results rely on, as a list in tests/project/contract.json.

    python scripts/contract.py check     # fails if something of the list is gone
    python scripts/contract.py write     # before a release: the list becomes what is there now

docs/versions.md says when something of it may go.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = ROOT / "tests" / "project" / "contract.json"
SCHEMA = ROOT / "ttmbench" / "results" / "schemas" / "results-1.0.json"


def found() -> dict[str, list[str]]:
    """The names that are there now, sorted: of the package, of hooks with their arguments, of keys of results."""
    import ttmbench
    from ttmbench import hookspecs
    from ttmbench.results.document import SCHEMA_VERSION

    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    hooks = {name: inspect.signature(hook).parameters for name, hook in vars(hookspecs).items() if "ttmbench_" in name}
    return {
        "names": sorted(ttmbench.__all__),
        "hooks": sorted(f"{name}({', '.join(arguments)})" for name, arguments in hooks.items()),
        f"results {SCHEMA_VERSION}": sorted(set(_keys(schema, schema, ()))),
    }


def _keys(part: Mapping, whole: Mapping, inside: tuple[str, ...], prefix: str = "") -> Iterator[str]:
    """Every key that a JSON Schema names, with those around it; a part that refers to itself is entered once."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        if name not in inside:
            yield from _keys(whole["$defs"][name], whole, (*inside, name), prefix)
    for key, value in part.get("properties", {}).items():
        yield f"{prefix}{key}"
        yield from _keys(value, whole, inside, f"{prefix}{key}.")
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), Mapping):
            yield from _keys(part[key], whole, inside, f"{prefix}*.")
    for key in ("anyOf", "oneOf", "allOf"):
        for choice in part.get(key, ()):
            yield from _keys(choice, whole, inside, prefix)


def read() -> dict[str, list[str]]:
    """The list as it was written."""
    content: dict[str, list[str]] = json.loads(CONTRACT.read_text(encoding="utf-8"))
    return content


def broken(now: Mapping[str, list[str]], before: Mapping[str, list[str]]) -> list[str]:
    """What was there before and is not now, a line each.

    A hook may be given more arguments: an implementation takes those that it names. A new major version of the results'
    schema has a list of its own.
    """
    lost = []
    for kind, names in before.items():
        if kind.startswith("results ") and kind not in now:
            continue
        there = set(now.get(kind, ()))
        if kind == "hooks":
            there |= {hook for hook in names for other in there if _has_arguments_of(other, hook)}
        lost += [f"{kind}: {name} is gone" for name in names if name not in there]
    return lost


def _has_arguments_of(more: str, less: str) -> bool:
    """Whether a hook is another one, with all of its arguments."""
    (name, arguments), (other, fewer) = _split(more), _split(less)
    return name == other and arguments >= fewer


def _split(hook: str) -> tuple[str, set[str]]:
    name, _, arguments = hook.rstrip(")").partition("(")
    return name, set(filter(None, arguments.split(", ")))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["check", "write"])
    if parser.parse_args().action == "write":
        CONTRACT.write_text(json.dumps(found(), indent=1) + "\n", encoding="utf-8")
    elif lost := broken(found(), read()):
        sys.exit("\n".join([*lost, "docs/versions.md says when it may go"]))


if __name__ == "__main__":
    main()
