"""The command that installs a package which a library reports as missing, each in its own words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

# Packages whose name for pip differs from that of their module or their title in messages.
_PIP_NAMES = {
    "cv2": "opencv-python",
    "google": "protobuf",
    "open_clip": "open_clip_torch",
    "opencv": "opencv-python",
    "pil": "pillow",
    "pyav": "av",
    "pytorch": "torch",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PATTERNS = (
    # transformers.utils.requires_backends, once for each missing package
    rf"requires the (?P<one>{_NAME}) library,? but it was not found",
    rf"requires (?P<one>{_NAME}) >= [\d.]+, but \S+ was not found",
    # a video processor; image processors
    rf"requires `(?P<one>{_NAME})` to be installed",
    rf"Missing optional dependencies: (?P<many>{_NAME}(?:, {_NAME})*)",
    rf"Package `(?P<one>{_NAME})` is required",
    # most libraries, in many wordings, between backticks or at the end of a line
    rf"pip install (?P<command>(?:(?:-U|--upgrade|{_NAME}(?:\[[a-z0-9,_-]+\])?)(?: |(?=[`.,;'\n]|$)))+)",
)
# transformers' message for a SentencePiece file where one of the first two is missing: it then takes it for another.
_READS_AS_TIKTOKEN = "required to read a `tiktoken` file"
_SENTENCEPIECE = ("sentencepiece", "protobuf", "tiktoken")


def what_to_install(error: BaseException) -> str | None:
    """The command that installs a missing package; None if an error is about something else.

    A package that we require comes with our bound of its version, one of an extra as that extra.

    Args:
        error: raised by the library; its causes are looked at too.

    >>> what_to_install(ModuleNotFoundError("No module named 'peft'", name="peft"))
    "pip install 'ttmbench[lora]'"
    >>> what_to_install(OSError("no such file")) is None
    True
    """
    seen: BaseException | None = error
    while seen is not None:
        names = list(dict.fromkeys(_missing(seen)))
        if names:
            return " ".join(["pip install", *dict.fromkeys(shlex.quote(_as_ours(name) or name) for name in names)])
        seen = seen.__cause__
    return None


def _missing(error: BaseException) -> Iterator[str]:
    """Names or titles of missing packages in one error, and the words of a command that it suggests."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        module = "google" if error.name == "google.protobuf" else error.name
        if _as_ours(module) is not None:  # else it is part of a package, or nobody knows its package
            yield module
        return
    detail = str(error)
    if _READS_AS_TIKTOKEN in detail:
        yield from _SENTENCEPIECE
        return
    for pattern in _PATTERNS:
        for match in re.finditer(pattern, detail):
            groups = match.groupdict()
            if "command" in groups:
                yield from groups["command"].split()
            else:
                yield from (groups.get("one") or groups["many"]).split(", ")


def _as_ours(name: str) -> str | None:
    """A package as we require it: with our bound, or as the extra that brings it; None for unknown ones."""
    known = _PIP_NAMES.get(name.lower())
    try:
        ours = requires("ttmbench") or []
    except PackageNotFoundError:  # a checkout that is not installed
        ours = []
    for line in ours:
        requirement, _, marker = line.partition(";")
        if _plain(re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0]) == _plain(known or name):
            extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", marker)
            if extra is None:
                return requirement.strip().replace(" ", "")
            if extra[1] not in ("dev", "test"):
                return f"ttmbench[{extra[1]}]"
    return known


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
