"""Strict and bounded readers of text, JSON, JSON lines and YAML.

They refuse a key that is given twice, NaN in JSON, and half surrogates in a text. Messages of `Unreadable` are one line
that follows the file's name.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import yaml
from yaml.constructor import SafeConstructor

from ttmbench._util.limits import limit, raised_by
from ttmbench.errors import DataError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_TEXT = "tag:yaml.org,2002:str"
POINTER = b"version https://git-lfs.github.com/spec/"
IS_POINTER = "is a Git LFS pointer instead of the file; run `git lfs pull` in its repository"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Unreadable(ValueError):
    """A file cannot be read; the message does not name it."""


@contextmanager
def _reading(path: Traversable, most: str) -> Iterator[None]:
    """Checks that a file is a regular one of at most so many bytes; errors of opening and reading it are Unreadable."""
    try:
        if isinstance(path, Path):
            about = path.stat()
            if stat.S_ISDIR(about.st_mode):
                raise Unreadable("cannot be read (Is a directory)")
            if not stat.S_ISREG(about.st_mode):
                raise Unreadable("is not a regular file")
            if about.st_size > limit(most):
                what = f"is too large: {about.st_size} bytes, at most {limit(most)} are read"
                raise Unreadable(f"{what}; {raised_by(most)}")
        yield
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error})") from None
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"cannot be read ({error})") from None  # a null character in the path


def read_text(path: Traversable, most: str = "text_bytes") -> str:
    """A file's UTF-8 text without a byte-order mark; Unreadable if it exceeds the limit ``most`` or is not UTF-8."""
    with _reading(path, most):
        return _decoded(path.read_bytes())


def _decoded(content: bytes, first_line: int = 1) -> str:
    """UTF-8 text that begins with line ``first_line``; Unreadable with line and character of another byte."""
    if first_line == 1 and content.startswith(POINTER):
        raise Unreadable(IS_POINTER)
    try:
        return content.decode("utf-8-sig" if first_line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line = before.count(b"\n") + first_line
        character = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        position = f"line {line}, character {character}"
        byte = f"{error.object[error.start]:#04x}"
        raise Unreadable(f"is not UTF-8 text: {position} is byte {byte}; save the file as UTF-8") from None


def check_no_pointer(path: Path) -> None:
    """DataError for a file that Git LFS did not fetch."""
    if path.is_file():
        with suppress(OSError), path.open("rb") as file:  # its reader reports the error
            if file.read(len(POINTER)) == POINTER:
                raise DataError(f"{path} {IS_POINTER}")


def parse_json(text: str, finite: bool = True) -> Any:
    """A JSON value, read strictly.

    Args:
        text: JSON.
        finite: also refuse NaN, Infinity and numbers beyond floats; otherwise the caller checks and names them.

    Raises:
        Unreadable: it is not JSON, nests too deeply, gives a key twice, or has a half surrogate.

    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
        ...
    ttmbench._util.text.Unreadable: is not JSON (key 'a' is given twice)
    """
    try:
        # json.loads makes a decoder each time, which costs as much as a line of samples.
        value = (_FINITE if finite else _ANY).decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Unreadable("is not JSON (a text holds half a surrogate pair)") from None
    except RecursionError:
        raise Unreadable("is not JSON (it nests too deeply)") from None
    except ValueError as error:
        raise Unreadable(f"is not JSON ({' '.join(str(error).split())[:200]})") from None
    return value


def read_json(path: Path) -> Any:
    """A file's JSON value, read by `parse_json`."""
    return parse_json(read_text(path))


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line numbers, from 1, and objects of a file of JSON lines; empty lines are skipped.

    Only a line feed ends a line, since JSON strings may contain U+2028. Numbers may be NaN or infinite.

    Raises:
        DataError: the file cannot be read, is not UTF-8 text, or a line is too long or not a JSON object.
    """
    import jsonlines

    longest, number = limit("line_bytes"), 0

    def lines(file: BinaryIO) -> Iterator[str]:
        nonlocal number
        for number, line in enumerate(iter(lambda: file.readline(longest + 1), b""), start=1):
            if len(line) > longest:
                raise Unreadable(f"line {number} is longer than {longest} bytes; {raised_by('line_bytes')}")
            yield _decoded(line, number)

    try:
        with _reading(path, "text_bytes"), path.open("rb") as file:
            reader = jsonlines.Reader(lines(file), loads=partial(parse_json, finite=False))
            try:
                for value in reader.iter(type=dict, skip_empty=True):
                    yield number, value
            except jsonlines.InvalidLineError as error:
                why = error.__cause__ or "is not a JSON object"
                raise DataError(f"{path}: line {number} {why}") from None
    except Unreadable as error:
        raise DataError(f"{path}: {error}") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        seen: set[str] = set()
        doubled = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {doubled!r:.80} is given twice")
    return unique


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


_FINITE = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
_ANY = json.JSONDecoder(object_pairs_hook=_unique)


class _Strict(SafeConstructor):
    """Safe YAML without duplicate keys, with numbers of bounded length."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        if isinstance(node, yaml.ScalarNode) and node.tag != _TEXT and len(node.value) > limit("yaml_number"):
            line, length = node.start_mark.line + 1, len(node.value)  # 1:59:59:... is one number to YAML 1.1
            problem = f"line {line} has a number of {length} characters; write a text in quotes"
            raise yaml.YAMLError(f"{problem}; {raised_by('yaml_number')}")
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value
            if isinstance(key, str) and key in seen:
                raise yaml.YAMLError(f"key '{key}' is given twice (line {key_node.start_mark.line + 1})")
            seen.add(key if isinstance(key, str) else None)
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):  # 1 and 0x1
            raise yaml.YAMLError(f"a key is given twice (line {node.start_mark.line + 1})")
        return mapping


class _PlainLoader(_Strict, yaml.SafeLoader):
    """PyYAML's loader in Python, whose errors are the most precise."""


_LOADERS: list[type[_PlainLoader]] = [_PlainLoader]
if yaml.__with_libyaml__:  # several times as fast; on an error the text is read again by the other
    _LOADERS.insert(0, type("_FastLoader", (_Strict, yaml.CSafeLoader), {}))


def read_yaml(path: Traversable) -> Any:
    """A file's YAML value: mappings, lists, texts, numbers and dates.

    Unreadable for anything but YAML, and for a tag that would create an object, an alias, a duplicate key or deep
    nesting.
    """
    text = read_text(path, "yaml_bytes")
    try:
        for loader in _LOADERS:
            try:
                depth, deepest = 0, limit("yaml_depth")
                for event in yaml.parse(text, loader):  # before any value is made
                    if isinstance(event, yaml.AliasEvent):
                        raise yaml.YAMLError("aliases (*name) are not allowed; a task file can include another one")
                    begins = isinstance(event, yaml.CollectionStartEvent)
                    depth += begins - isinstance(event, yaml.CollectionEndEvent)
                    if depth > deepest:
                        raise yaml.YAMLError(f"it nests more than {deepest} deep; {raised_by('yaml_depth')}")
                value = yaml.load(text, loader)
                break
            except Exception:
                if loader is _PlainLoader:
                    raise
        json.dumps(value, ensure_ascii=False, default=str, skipkeys=True).encode("utf-8")
    except UnicodeEncodeError:
        raise Unreadable("is not valid YAML: a text holds half a surrogate pair") from None
    except RecursionError:
        raise Unreadable("is not valid YAML: it nests too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
        raise Unreadable(f"is not valid YAML: {' '.join(str(error).split())[:400]}") from None
    return value
