"""Counts what one run enters and builds: files, functions, classes, and which objects hold scores, groups or results.

    python scripts/trace_run.py                  # the command of the README on 24 groups, one iteration
    python scripts/trace_run.py --list -- --model tiny-clip --tasks shapes_color --limit 8

A carrier is a dataclass, a named tuple, a pydantic model or a returned tuple that holds a score array (three axes:
groups, images, captions), a list of groups, or numbers of results. Only the package and its model adapters count.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
OURS = (str(ROOT / "ttmbench"), str(ROOT / "model_adapters"), str(ROOT / "tasks"))
MOST_OPTIONS = 16  # images or captions of a group; pixels have more rows
DEFAULT = "--model tiny-clip --tasks shapes_color --limit 24 --ttm --ttm_args iterations=2,epochs=1"


class Trace:
    """Counts by ``sys.setprofile``; ``held`` maps a carrier's name to what it was seen to hold."""

    def __init__(self) -> None:
        self.functions: Counter[tuple[str, str]] = Counter()
        self.built: Counter[str] = Counter()
        self.held: defaultdict[str, set[str]] = defaultdict(set)

    def __call__(self, frame: FrameType, event: str, value: object) -> None:
        """Called by the interpreter on every call and return of a Python function."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS) and code.co_flags & inspect.CO_OPTIMIZED:
            self.functions[code.co_filename, code.co_qualname] += 1
        elif event == "return" and code.co_name == "__init__":
            self._built(frame.f_locals.get("self"))
        elif event == "return" and isinstance(value, tuple) and not hasattr(value, "_fields"):
            if code.co_filename.startswith(OURS[0]) and (kinds := _kinds(value)):
                self.held[f"tuple returned by {Path(code.co_filename).stem}.{code.co_qualname}"] |= kinds
        elif event == "return" and code.co_name == "__new__" and hasattr(value, "_fields"):
            self._built(value)

    def _built(self, thing: object) -> None:
        kind = type(thing)
        if not kind.__module__.startswith("ttmbench"):
            return
        name = f"{kind.__module__.removeprefix('ttmbench.')}.{kind.__qualname__}"
        if (values := _fields(thing)) is not None:
            self.built[name] += 1
            self.held[name] |= _kinds(values)


def _fields(thing: object) -> list | None:
    """The values of a dataclass, named tuple or pydantic model; None for anything else."""
    if dataclasses.is_dataclass(thing):
        return [getattr(thing, field.name, None) for field in dataclasses.fields(thing)]
    if hasattr(thing, "_fields"):
        return list(thing)
    return [getattr(thing, name, None) for name in getattr(type(thing), "model_fields", ())] or None


def _kinds(values: Iterable[object], depth: int = 3) -> set[str]:
    """What of scores, groups and results is among the values, or inside those that are carriers, lists or mappings."""
    kinds = set()
    for value in values:
        inner = (
            list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list | tuple) else []
        )
        for item in (value, *inner[:3]):
            name = type(item).__name__
            if name in {"ndarray", "Tensor"} and item.ndim == 3 and max(item.shape[1:]) <= MOST_OPTIONS:
                kinds.add("scores")
            elif name == "Group":
                kinds.add("groups")
            elif isinstance(item, dict) and any(isinstance(key, str) and "," in key for key in item):
                kinds.add("results")
            elif depth and type(item).__module__.startswith("ttmbench"):
                kinds |= _kinds(_fields(item) or (), depth - 1)
    return kinds


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name every file and class")
    parser.add_argument("arguments", nargs="*", help="arguments of ttmbench (after --)")
    options = parser.parse_args()
    from ttmbench.cli import main as command

    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        words = options.arguments or [*DEFAULT.split(), "--output_path", folder]
        threading.setprofile(trace)
        sys.setprofile(trace)
        try:
            code = command(words)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    files = Counter(path for path, _ in trace.functions)
    carriers = {name: kinds for name, kinds in trace.held.items() if kinds}
    print(f"\nexit {code}: {len(files)} files, {len(trace.functions)} functions, {len(trace.built)} classes built")
    print(
        f"{len(carriers)} carriers, {sum('scores' in kinds for kinds in carriers.values())} of them hold a score array:"
    )
    for name, kinds in sorted(carriers.items()):
        print(f"  {trace.built[name] or '-':>5}  {name}: {', '.join(sorted(kinds))}")
    if options.list:
        print("\nfiles:", *sorted(str(Path(path).relative_to(ROOT)) for path in files), sep="\n  ")
        print("\nclasses:", *(f"{count:6d}  {name}" for name, count in sorted(trace.built.items())), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
