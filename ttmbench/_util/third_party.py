"""Code of others: its errors as one line with origin and stage; the libraries of the Hub, silenced and kept offline."""

from __future__ import annotations

import re
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from itertools import pairwise
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from ttmbench._util.console import one_line
from ttmbench.errors import TtmbenchError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails


UNKNOWN_TOKEN = (
    "the hub does not know the token that it was shown: HF_TOKEN, or what `hf auth login` stored; renew or unset it"
)
ACCEPT_TERMS = "it is gated: accept its terms at {} and set HF_TOKEN to a token of that account"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
OPEN_CLIP_CONFIG, MODULES = "open_clip_config.json", "modules.json"
PASSING = (429, 500, 502, 503, 504)  # statuses of temporary errors
TRIES = 4
T = TypeVar("T")
Trouble = Literal["gated", "unknown revision", "unknown", "token", "unreachable", "refused", "other"]


def error_line(error: BaseException) -> str:
    r"""An error of someone else's code as one bounded line.

    >>> error_line(ValueError("two\nlines"))
    'ValueError: two lines'
    """
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be shown)"
    if isinstance(error, NotImplementedError) and not text and error.__traceback__:
        text = f"define {traceback.extract_tb(error.__traceback__)[-1].name}"
    return one_line(f"{type(error).__name__}: {text}").rstrip(": ")


# Of CUDA's libraries, which name no memory, the last of cuDNN that finds room for none of its algorithms; oneDNN, on a
# processor, says no more than that it cannot create its code.
_OUT_OF_MEMORY = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc"),
    *("could not create a primitive", "could not create a memory object"),
    *("cublas_status_alloc_failed", "cudnn_status_alloc_failed", "cusolver_status_alloc_failed"),
    *("unable to find a valid cudnn algorithm", "unable to find an engine to execute this computation"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on whichever device.

    >>> is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    True
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def error_with_place(error: BaseException, function: object = None) -> str:
    """An error of someone else's code as one bounded line, with its line in a plugin, or else its ``function``'s."""
    place = place_of(error) or place_of_function(function)
    return f"{one_line(error_line(error), _BESIDE_A_PLACE)}{f' ({place})' if place else ''}"


_BESIDE_A_PLACE = 1000  # characters of a message, so that what follows is shown too
_PACKAGE = Path(__file__).resolve().parents[1]
_OURS = (_PACKAGE, _PACKAGE.parent / "model_adapters", Path(sysconfig.get_path("stdlib")).resolve())
_INSTALLED = ("site-packages", "dist-packages")
_LIBRARIES = {  # an error in these is not a plugin's
    *("PIL", "accelerate", "datasets", "httpx2", "huggingface_hub", "numpy", "open_clip", "openai", "pandas", "peft"),
    *("pluggy", "pyarrow", "pydantic", "safetensors", "scipy", "timm", "tokenizers", "torch", "torchvision"),
    *("transformers", "tqdm", "yaml", "rich", "_pytest", "pytest", "hypothesis", "ttmbench"),
}


def place_of(error: BaseException) -> str | None:
    """File and line of a plugin in which an error arose, as ``package/module.py, line 12``; None if in no plugin.

    It is the last line in the first package that is neither ttmbench nor a known library.
    """
    if isinstance(error, SyntaxError) and error.filename and (place := _place(error.filename, error.lineno)):
        return place
    frames = traceback.extract_tb(error.__traceback__)
    places = [place for frame in frames if (place := _place(frame.filename, frame.lineno))]
    return next((place for place in reversed(places) if _PARTS.split(place)[0] == _PARTS.split(places[0])[0]), None)


_PARTS = re.compile("[/,]")  # of a place


def place_of_function(function: object) -> str | None:
    """File and line in which a plugin's function begins; None for other functions."""
    function = getattr(function, "func", function)  # of a partial
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return None if code is None else _place(code.co_filename, code.co_firstlineno)


def _place(name: str, line: int | None) -> str | None:
    """A line of a plugin's file, which is named from its outermost package on; None for other files."""
    file = Path(name).resolve()
    installed = [inner for folder, inner in pairwise(file.parts) if folder in _INSTALLED]
    ours = any(one.removesuffix(".py") in _LIBRARIES for one in installed[:1])
    if name.startswith("<") or ours or (not installed and any(map(file.is_relative_to, _OURS))):
        return None
    above = next(folder for folder in file.parents if not (folder / "__init__.py").is_file())
    return one_line(f"{file.relative_to(above).as_posix()}, line {line or 1}", 200)


@contextmanager
def foreign_errors(whose: str, kind: type[TtmbenchError] = TtmbenchError, function: object = None) -> Iterator[None]:
    """Turns other errors than ttmbench's into a ``kind`` that begins with ``whose``; ``function`` is called inside."""
    try:
        yield
    except TtmbenchError:
        raise
    except (Exception, SystemExit) as error:
        hint = " (--deterministic asks for it; use --device cpu, or omit it)" if "deterministic" in str(error) else ""
        detail = kind(f"{whose} failed: {error_with_place(error, function)}{hint}")
        if hasattr(error, "ttmbench_stage"):  # see `phase`
            detail.ttmbench_stage = error.ttmbench_stage  # type: ignore[attr-defined]
        raise detail from error


def _names_in(annotation: Any, path: Sequence[int | str]) -> list[str]:
    """The keys that may stand where a path leads, in a value of a type."""
    if not path and hasattr(annotation, "model_fields"):
        return sorted(annotation.model_fields)
    inner = getattr(annotation, "model_fields", {}).get(path[0]) if path else None
    if inner is not None:
        return _names_in(inner.annotation, path[1:])
    parts = get_args(annotation)
    # The key of a mapping, or else the branch of a union, stands for no field.
    return next((names for part in parts for rest in (path[1:], path) if (names := _names_in(part, rest))), [])


_BRANCH = re.compile(r".*\[.*|str|int|float|bool")  # of a union, in the place of an error


def describe(error: ValidationError, model: type[BaseModel] | None = None, more: Sequence[str] = ()) -> str:
    """A pydantic error in one line: wrong keys, unknown first, as they often explain missing ones; and ``more``."""
    found: dict[tuple[int | str, ...], str] = {}
    for detail in sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden"):
        branch = next((at for at, part in enumerate(detail["loc"]) if _BRANCH.fullmatch(str(part))), None)
        found.setdefault(detail["loc"][:branch], _described(detail, model))  # the first branch speaks for the others
    return listed([*found.values(), *more])


def listed(problems: Sequence[str]) -> str:
    """Problems as one line, numbered if there are several."""
    numbered = (f"({number}) {text}" for number, text in enumerate(problems, start=1))
    return problems[0] if len(problems) == 1 else "; ".join(numbered)


def near_name(name: str, known: Collection[str], otherwise: str | None = None, cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: the nearest known one, else ``otherwise``, by default all of them."""
    near = get_close_matches(name, known, n=1, cutoff=cutoff)
    other = f"; known: {', '.join(known)}" if otherwise is None else otherwise
    return f"; did you mean '{near[0]}'?" if near else other


def _described(detail: ErrorDetails, model: type[BaseModel] | None) -> str:
    key = ".".join(str(part) for part in detail["loc"] if not _BRANCH.fullmatch(str(part)))
    if detail["type"] == "extra_forbidden":
        known = _names_in(model, detail["loc"][:-1])
        return f"unknown key '{key}'" + (near_name(str(detail["loc"][-1]), known) if known else "")
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.partition(", unable to parse")[0]
    if detail["type"] == "missing":
        return f"key '{key}' is missing"
    shown = repr(detail["input"])
    got = f", got {shown}" if key and len(shown) < 80 and message[-1] != "?" else ""
    return f"'{key}': {message[0].lower()}{message[1:]}{got}" if key else message


@contextmanager
def phase(stage: str) -> Iterator[None]:
    """Marks errors raised inside with this stage, unless an inner stage already did."""
    try:
        yield
    except BaseException as error:
        if not hasattr(error, "ttmbench_stage"):
            error.ttmbench_stage = stage  # type: ignore[attr-defined]
        raise


def phase_of(error: BaseException, otherwise: str) -> str:
    """The stage in which an error was raised."""
    return str(getattr(error, "ttmbench_stage", otherwise))


@contextmanager
def quiet_hub(*, offline: bool = False, fetches: bool = False) -> Iterator[None]:
    """Hides progress bars, retries and advice of ``huggingface_hub`` and ``transformers``.

    ``offline``: it and ``datasets`` never use the network. ``fetches``: on a terminal, bars of large files are shown.
    """
    from huggingface_hub import constants, utils

    tables: Any = sys.modules.get("datasets")  # or a folder of the user's that has this name
    with ExitStack() as before:
        for logger in map(getLogger, ("huggingface_hub", "transformers")):
            before.callback(logger.setLevel, logger.level)
            logger.setLevel("ERROR")
        if offline:
            before.callback(getattr(utils, "reset_sessions", bool))  # before 1.0 one that was made offline stays so
        for bars, switch in ((utils, constants), *([(tables, tables.config)] if hasattr(tables, "config") else [])):
            if not (bars.are_progress_bars_disabled() or (fetches and sys.stderr.isatty())):
                before.callback(bars.enable_progress_bars)
                bars.disable_progress_bars()
            if offline:
                before.callback(setattr, switch, "HF_HUB_OFFLINE", switch.HF_HUB_OFFLINE)
                switch.HF_HUB_OFFLINE = True
        models: Any = sys.modules.get("transformers.utils.logging")
        if models is not None:
            before.callback(models.enable_progress_bar)
            models.disable_progress_bar()
        yield


def trouble(error: BaseException) -> Trouble:
    """Classifies an error of ``huggingface_hub`` or of a library that wraps it.

    ``unknown``: it does not exist, or this account may not see it. ``token``: the Hub does not know the token.
    ``unreachable``: it is not cached and there is no answer (yet). ``refused``: another error status.
    """
    from huggingface_hub import errors

    wrapped, status = chain(error), status_of(error)
    kinds: dict[type, Trouble] = {errors.GatedRepoError: "gated", errors.RevisionNotFoundError: "unknown revision"}
    for named, kind in (kinds | {errors.RepositoryNotFoundError: "unknown"}).items():
        if any(isinstance(cause, named) for cause in wrapped):
            return kind
    # For other classes only the error itself counts, not those that it was raised from.
    missing = (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError, TimeoutError)
    of_client = {"TransportError", "ConnectionError", "Timeout"} & {kind.__name__ for kind in type(error).__mro__}
    if status in PASSING or isinstance(error, missing) or (status is None and of_client):
        return "unreachable"
    if status == 401:
        return "token"
    if isinstance(error, FileNotFoundError | errors.EntryNotFoundError):
        return "unknown"
    return "other" if status is None else "refused"


def is_busy(error: Exception) -> bool:
    """What not all of the Hub's libraries try again: a busy server, and a body that breaks, with older versions."""
    return status_of(error) in PASSING or type(error).__name__ == "ChunkedEncodingError"


def patiently(ask: Callable[[], T], may_pass: Callable[[Exception], bool] = is_busy, tries: int = TRIES) -> T:
    """Calls a function up to ``tries`` times while its error may pass, as one of the Hub's does when it is busy."""
    for attempt in range(tries - 1):
        try:
            return ask()
        except Exception as error:
            if not may_pass(error):
                raise
            time.sleep(2.0**attempt)
    return ask()


def chain(error: BaseException | None) -> list[BaseException]:
    """An error and those that it was raised from, suppressed ones too."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return seen


def status_of(error: BaseException) -> int | None:
    """The server's status, if it answered."""
    statuses = (getattr(getattr(cause, "response", None), "status_code", None) for cause in chain(error))
    return next((status for status in statuses if isinstance(status, int)), None)
