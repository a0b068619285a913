"""Counts the files of the package that one run enters, its functions (not those in functions) and their lines."""

from __future__ import annotations

import inspect
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
OURS = (str(ROOT / "ttmbench"), str(ROOT / "model_adapters"))
DEFAULT = "--model tiny-clip --tasks shapes_color --limit 24 --ttm --ttm_args iterations=2,epochs=1"


def main() -> int:
    """Entry point."""
    from ttmbench.cli import main as command

    seen: dict[tuple[str, str], int] = {}

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS) and code.co_flags & inspect.CO_OPTIMIZED:
            last = max(line for _, _, line in code.co_lines() if line)
            seen[code.co_filename, code.co_qualname] = last - code.co_firstlineno + 1

    with tempfile.TemporaryDirectory() as folder:
        words = sys.argv[1:] or [*DEFAULT.split(), "--output_path", folder]
        threading.setprofile(enter)
        sys.setprofile(enter)
        try:
            code = command(words)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    lines = [count for (_, name), count in seen.items() if "<locals>" not in name]
    print(f"\nexit {code}: {len({file for file, _ in seen})} files, {len(lines)} functions, {sum(lines)} lines")
    return code


if __name__ == "__main__":
    sys.exit(main())
