"""What numbers were computed with: versions of packages, the commit, hardware and its memory."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ttmbench._version import __version__

PACKAGES = "ttmbench torch torchvision transformers numpy scipy datasets open_clip_torch pillow".split()


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def packages() -> dict[str, str]:
    """Versions of the installed packages that affect numbers."""
    versions = {name: __version__ if name == "ttmbench" else installed_version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **{name: number for name, number in versions.items() if number}}


@functools.cache  # what is imported stays what it is; reading metadata takes longer than scoring a few groups
def installed_version(name: str) -> str | None:
    """The version of an installed package; None if it is absent."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def matmul_precision() -> str:
    """Torch's precision of float32 products, by whichever of its two ways it was set."""
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set for a backend, and torch has no one word for all of them
        backends: Any = torch.backends
        return f"cuda {backends.cuda.matmul.fp32_precision}, cpu {backends.mkldnn.matmul.fp32_precision}"


def hardware() -> dict[str, object]:
    """CPU, and torch's threads, precision of float32 products and accelerator if torch is imported."""
    torch, override = sys.modules.get("torch"), os.environ.get("NVIDIA_TF32_OVERRIDE")
    return {
        "platform": platform.platform(terse=True),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability() if torch else None,
        "torch_threads": torch.get_num_threads() if torch else None,
        "accelerator": torch.cuda.get_device_name(0) if torch and torch.cuda.is_available() else None,
        **({"matmul_precision": matmul_precision()} if torch else {}),
        **({"NVIDIA_TF32_OVERRIDE": override} if override else {}),
    }


def peak_memory(restart: bool = False) -> dict[str, int | str]:
    """The most memory held: by tensors on all GPUs since the last ``restart``, else by this process, if known."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available() and torch.cuda.is_initialized():
        gpus = range(torch.cuda.device_count())
        if restart:
            for gpu in gpus:
                torch.cuda.reset_peak_memory_stats(gpu)
        most = sum(torch.cuda.max_memory_allocated(gpu) for gpu in gpus)
        return {"peak_memory_bytes": most, "peak_memory_of": "cuda"}
    try:
        import resource
    except ImportError:  # Windows
        return {}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"peak_memory_bytes": most, "peak_memory_of": "process"}


def git_hash() -> str | None:
    """Commit of the working folder; None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, cwd=Path.cwd(), check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
