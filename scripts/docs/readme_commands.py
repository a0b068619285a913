"""Prints a command of the README by its name, so that what is tested is what a reader types."""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def commands() -> dict[str, str]:
    """Name -> command, from fenced blocks that follow a line ``<!-- command: name -->``."""
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- command: (\w+) -->\n```bash\n(.*?)```", text, flags=re.DOTALL)
    return {name: body.strip() for name, body in blocks}


if __name__ == "__main__":
    print(commands()[sys.argv[1]])
