"""Where a run happened: packages, hardware, version control, and the command with its secrets taken out."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("ttmbench", "torch", "transformers", "numpy", "scipy", "datasets", "open_clip_torch", "pillow")
_SECRET_NAME = r"(?i:[\w-]*(?:token|api[_-]?key|secret|password|passwd))"
_SECRET = re.compile(rf"(\b{_SECRET_NAME}\b)(\s*[=:\s]\s*)([^\s,]+)")
_SECRET_VALUE = re.compile(r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,})")
_SECRET_IN_URL = re.compile(r"(://[^/\s:@]+:)[^/\s@]+@")


def packages() -> dict[str, str]:
    """Versions of what changes numbers; absent packages are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Processor, and torch's threads and accelerator where the run used torch."""
    torch = sys.modules.get("torch")
    return {
        "platform": platform.platform(terse=True),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads() if torch else None,
        "accelerator": torch.cuda.get_device_name(0) if torch and torch.cuda.is_available() else None,
    }


def git_hash() -> str | None:
    """Commit of the working folder, None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, cwd=Path.cwd(), check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def redact(arguments: Sequence[str]) -> str:
    """A command line as one string, with tokens, keys and passwords replaced.

    >>> redact(["ttmbench", "--model_args", "api_key=sk-12345678,model=x"])
    'ttmbench --model_args api_key=<redacted>,model=x'
    """
    text = _SECRET.sub(r"\1\2<redacted>", " ".join(arguments))
    return _SECRET_IN_URL.sub(r"\1<redacted>@", _SECRET_VALUE.sub("<redacted>", text))


def redact_values(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with secret values replaced, at any depth."""
    clean: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            clean[key] = redact_values(value)
        elif re.fullmatch(_SECRET_NAME, key):
            clean[key] = "<redacted>" if value else value
        elif isinstance(value, str):
            clean[key] = redact([value])
        else:
            clean[key] = value
    return clean
