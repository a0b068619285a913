"""What ``--deterministic`` and ``--dtype tf32`` switch in this process, and back."""

from __future__ import annotations

import os
import platform
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from ttmbench._util import machine
from ttmbench.config import RunConfig
from ttmbench.errors import TtmbenchError, UsageError

THREADS = 1  # another number adds in another order; one is the only number that every machine has
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED_WORKSPACES = (":4096:8", ":16:8")  # those that torch takes as deterministic
_LACKING = re.compile(r"^(?P<operation>[^\n]{1,100}?) does not have a deterministic implementation")


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Inside, torch computes the same bits every time on one machine; afterwards all settings are restored.

    The workspace of cuBLAS is read when CUDA starts, so its variable stays set if CUDA was started inside.
    """
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
def arithmetic_of(config: RunConfig) -> Iterator[None]:
    """Inside, torch computes as the settings say: with ``deterministic`` the same bits every time, or in TF32.

    UsageError for TF32 without an NVIDIA GPU.
    """
    if config.deterministic:
        with deterministic(config.seed):
            yield
    elif config.arithmetic != "tf32":
        yield
    elif config.device.startswith("cpu") or not torch.cuda.is_available():
        where = "it runs on the CPU" if config.device.startswith("cpu") else "torch finds none"
        raise UsageError(f"--dtype tf32 needs an NVIDIA GPU, and {where}; use --dtype fp32")
    else:
        with ExitStack() as stack:
            stack.callback(_precision())
            matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
            if hasattr(matmul, "fp32_precision"):
                matmul.fp32_precision = cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
            else:  # torch before 2.9
                matmul.allow_tf32 = cudnn.allow_tf32 = True
            yield


@contextmanager
def naming_what_cannot() -> Iterator[None]:
    """Turns torch's refusal of a nondeterministic operation into a TtmbenchError that names a remedy."""
    try:
        yield
    except RuntimeError as error:
        detail = str(error)
        lacking = _LACKING.match(detail)
        if lacking:
            raise TtmbenchError(
                f"torch has no deterministic version of {lacking['operation']} on this device, so this cannot be "
                "computed with --deterministic; use --device cpu, or omit it"
            ) from error
        if WORKSPACE in detail and "deterministic" in detail.lower():
            raise TtmbenchError(
                f"CUDA was started before --deterministic without a fixed workspace; set {WORKSPACE}=:4096:8 in the "
                "environment before Python starts"
            ) from error
        raise


def conditions(batch_size: int | str) -> dict[str, Any]:
    """What bits depend on beside model, data and settings, as JSON values: part of the keys of cached scores."""
    return {
        "batch_size": batch_size,
        "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
        "accelerator": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "packages": machine.packages(),
    }


@contextmanager
def _fixed_workspace() -> Iterator[None]:
    """A fixed workspace of cuBLAS, if CUDA has not read the variable yet."""
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
