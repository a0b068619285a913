"""Where a run happened: packages, hardware and version control."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ttmbench._version import __version__

PACKAGES = (
    *("ttmbench", "torch", "torchvision", "transformers", "numpy", "scipy", "datasets", "open_clip_torch", "pillow"),
)


def packages() -> dict[str, str]:
    """Versions of what changes numbers; absent packages are left out."""
    found = {"python": platform.python_version()}
    versions = ((name, __version__ if name == "ttmbench" else _version(name)) for name in PACKAGES)
    return found | {name: one for name, one in versions if one is not None}


@cache  # what is imported stays what it is; reading metadata takes longer than scoring a few groups
def _version(name: str) -> str | None:
    """Version of an installed package, None if it is absent."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def hardware() -> dict[str, Any]:
    """Processor, and torch's threads and accelerator where the run used torch."""
    torch = sys.modules.get("torch")
    return {
        "platform": platform.platform(terse=True),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability() if torch else None,
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
