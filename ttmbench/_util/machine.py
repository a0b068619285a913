"""What numbers are computed with: packages, the commit, hardware, and how torch is set to compute."""

from __future__ import annotations

import functools
import os
import platform
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from ttmbench._version import __version__
from ttmbench.errors import UsageError

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


def peak_memory() -> int | None:
    """The most bytes held so far: by tensors on all GPUs, or by this process where there is none; None if unknown."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        return sum(torch.cuda.max_memory_allocated(gpu) for gpu in range(torch.cuda.device_count()))
    if sys.platform != "linux":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def git_hash() -> str | None:
    """Commit of the working folder; None outside a repository."""
    command = ["git", "rev-parse", "HEAD"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        return done.stdout.strip() or None
    return None


THREADS = 1  # another number adds in another order; one is the only number that every machine has
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED_WORKSPACES = (":4096:8", ":16:8")  # those that torch takes as deterministic


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Inside, torch computes the same bits every time on one machine; afterwards all settings are restored.

    The workspace of cuBLAS is read when CUDA starts, so its variable stays set if CUDA was started inside.
    """
    import torch

    with ExitStack() as stack:
        stack.enter_context(_fixed_workspace())
        _put_back(stack)
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        torch.set_num_threads(THREADS)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        yield


@contextmanager
def tf32(device: str) -> Iterator[None]:
    """Inside, torch computes in TF32; UsageError without an NVIDIA GPU."""
    import torch

    if device.startswith("cpu") or not torch.cuda.is_available():
        where = "it runs on the CPU" if device.startswith("cpu") else "torch finds none"
        raise UsageError(f"--dtype tf32 needs an NVIDIA GPU, and {where}; use --dtype fp32")
    with ExitStack() as stack:
        stack.callback(_precision())
        backends: Any = torch.backends
        if hasattr(backends.cuda.matmul, "fp32_precision"):
            backends.cuda.matmul.fp32_precision = backends.cudnn.conv.fp32_precision = "tf32"
        else:  # torch before 2.9
            backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = True
        yield


def conditions(batch_size: int | str) -> dict[str, Any]:
    """What bits depend on beside model, data and settings, as JSON values: part of the keys of cached scores."""
    import torch

    return {
        "batch_size": batch_size,
        "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
        "accelerator": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "packages": packages(),
    }


@contextmanager
def _fixed_workspace() -> Iterator[None]:
    """A fixed workspace of cuBLAS, if CUDA has not read the variable yet."""
    import torch

    before = os.environ.get(WORKSPACE)
    if before in _FIXED_WORKSPACES or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield
        return
    os.environ[WORKSPACE] = _FIXED_WORKSPACES[0]
    try:
        yield
    finally:
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            os.environ.pop(WORKSPACE)
            if before is not None:
                os.environ[WORKSPACE] = before


def _put_back(stack: ExitStack) -> None:
    """Restores torch's switches and all random generators when the stack is left."""
    import torch

    stack.callback(
        torch.use_deterministic_algorithms,
        torch.are_deterministic_algorithms_enabled(),
        warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    for name in ("deterministic", "benchmark"):
        stack.callback(setattr, torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    stack.callback(_precision())
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    stack.callback(random.setstate, random.getstate())
    stack.callback(np.random.set_state, np.random.get_state())
    stack.callback(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        stack.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())


def _precision() -> Callable[[], None]:
    """What restores the precision of products, by both of torch's ways to set it: by word, and for each backend."""
    import torch

    backends = torch.backends
    candidates: list[Any] = [backends.cuda.matmul, *(getattr(backends.cudnn, name, None) for name in ("conv", "rnn"))]
    candidates += [getattr(backends.mkldnn, name, None) for name in ("matmul", "conv", "rnn")]
    each = [(backend, backend.fp32_precision) for backend in candidates if hasattr(backend, "fp32_precision")]
    try:
        word: str | None = torch.get_float32_matmul_precision()
    except RuntimeError:  # the two ways disagree
        word = None
    try:
        tf32: bool | None = backends.cudnn.allow_tf32
    except RuntimeError:
        tf32 = None

    def back() -> None:
        if word is not None:
            torch.set_float32_matmul_precision(word)
        if tf32 is not None:
            backends.cudnn.allow_tf32 = tf32
        for backend, precision in each:
            if backend.fp32_precision != precision:
                backend.fp32_precision = precision

    return back
