"""Writes the outputs and figures of docs/lessons.

``python scripts/docs/lessons.py write`` runs the python and console blocks of each page from top to bottom, in
an empty folder and one process, without a terminal and with lines of WIDTH columns. What a block prints goes into the
``text`` block after it, and figures that it saves go into ``docs/lessons/images``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

LESSONS = Path(__file__).resolve().parents[2] / "docs" / "lessons"
END = "-- end of block --"
WIDTH = "80"
_BLOCK = re.compile(
    r"(?:<details>\n<summary>(?P<summary>[^\n]*)</summary>\n\n)?"
    r"```(?P<kind>python|console)\n(?P<source>.*?)```\n(?(summary)\n</details>\n)"
    r"(?:\n```text\n(?P<output>.*?)```\n)?"
    r"(?:\n!\[(?P<alt>[^\]]*)\]\(images/(?P<figure>\S+)\)\n)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A python or console block of a page.

    Attributes:
        kind: ``python`` or ``console``.
        source: what stands in it.
        output: what it printed when the page was written.
        summary: what a reader sees of a collapsed block; None for most.
        figure: file in ``images`` that it draws, and what it shows; None for most.
        span: where the block stands on the page, with output and figure.
    """

    kind: str
    source: str
    output: str
    summary: str | None
    figure: tuple[str, str] | None
    span: tuple[int, int]

    @property
    def commands(self) -> list[str]:
        """The commands of a console block."""
        return [line.removeprefix("$ ") for line in self.source.splitlines()]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that run."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            match["kind"],
            match["source"],
            match["output"] or "",
            match["summary"],
            None if match["figure"] is None else (match["figure"], match["alt"]),
            match.span(),
        )
        for match in _BLOCK.finditer(text)
    ]


def program(page_blocks: list[Block]) -> str:
    """A program that does what the blocks do and prints END after each."""
    parts = ["from ttmbench.cli import main as _ttmbench"]
    for block in page_blocks:
        if block.kind == "python":
            parts.append(block.source)
        else:
            words = [command.removeprefix("ttmbench ").split() for command in block.commands]
            parts += [f"assert _ttmbench({arguments!r}) == 0" for arguments in words]
        parts.append(f"print({END!r}, flush=True)")
    return "\n".join(parts)


def printed(output: str) -> list[str]:
    """What each block printed, of what the program printed."""
    return [_trimmed(part) for part in output.split(f"{END}\n")[:-1]]


def _trimmed(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    return "".join(f"{line}\n" for line in lines).strip("\n") + "\n" if text.strip() else ""


def write(page: Path) -> None:
    """Runs a page and writes its outputs, its figures and its notebook."""
    page_blocks = blocks(page)
    with tempfile.TemporaryDirectory() as folder:
        surroundings = {**os.environ, "MPLBACKEND": "Agg", "COLUMNS": WIDTH, "TTMBENCH_CACHE": f"{folder}/.cache"}
        done = subprocess.run(
            [sys.executable, "-c", program(page_blocks)],
            cwd=folder,
            env=surroundings,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        if done.returncode:
            sys.exit(f"{page.name} does not run: see above; its program printed\n{done.stdout}")
        for block in page_blocks:
            if block.figure is not None:
                name = block.figure[0]
                drawn = Path(folder) / name.removeprefix(f"{page.stem}-")
                if drawn.is_file():
                    shutil.copy(drawn, LESSONS / "images" / name)
    text = page.read_text(encoding="utf-8")
    for block, output in reversed(list(zip(page_blocks, printed(done.stdout), strict=True))):
        text = text[: block.span[0]] + _page_block(block, output) + text[block.span[1] :]
    page.write_text(text, encoding="utf-8")


def _page_block(block: Block, output: str) -> str:
    code = f"```{block.kind}\n{block.source}```\n"
    if block.summary is not None:
        code = f"<details>\n<summary>{block.summary}</summary>\n\n{code}\n</details>\n"
    shown = f"\n```text\n{output}```\n" if output else ""
    figure = "" if block.figure is None else f"\n![{block.figure[1]}](images/{block.figure[0]})\n"
    return f"{code}{shown}{figure}"


if __name__ == "__main__":
    if sys.argv[1:2] != ["write"]:
        sys.exit(__doc__)
    for lesson in sorted(LESSONS.glob("*.md")):
        write(lesson)
