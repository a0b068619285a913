"""Text, JSON and YAML files from outside: bounded, read strictly, with errors of one line for the caller to place.

A value that could be read in two ways is refused: a key that is given twice, NaN where JSON has none, half a surrogate
pair in a text.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from ttmbench._util.limits import limit, raised_by

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_TEXT = "tag:yaml.org,2002:str"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Unreadable(ValueError):
    """A file is not what it should be; the message says what is wrong and names no file."""


def bounded_bytes(path: Traversable, most: str) -> bytes:
    """A regular file's content.

    Args:
        path: the file.
        most: name of the limit on its bytes.

    Returns:
        The bytes.

    Raises:
        Unreadable: it is no regular file, cannot be read, or is too large.
    """
    try:
        if isinstance(path, Path):
            _check_regular(path, most)
        content = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"cannot be read ({error})") from None  # a null character in the path
    _check_size(len(content), most)
    return content


def text_lines(path: Path, most: str = "text_bytes") -> Iterator[str]:
    """Yields the lines of a UTF-8 file without their line feeds, which alone end lines, and without a byte-order mark.

    Args:
        path: the file.
        most: name of the limit on its bytes.

    Yields:
        The lines.

    Raises:
        Unreadable: as `read_text`, or a line is too long; what follows it is not read.
    """
    longest, number = limit("line_bytes"), 0
    try:
        _check_regular(path, most)
        with path.open("rb") as file:
            while line := file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    raise Unreadable(f"line {number} is longer than {longest} bytes; {raised_by('line_bytes')}")
                yield line.removesuffix(b"\n").decode("utf-8-sig" if number == 1 else "utf-8")
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise not_utf8(error, number) from None
    except ValueError as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"cannot be read ({error})") from None  # a null character in the path


def _check_regular(path: Path, most: str) -> None:
    about = path.stat()
    if stat.S_ISDIR(about.st_mode):
        raise Unreadable("cannot be read (Is a directory)")
    if not stat.S_ISREG(about.st_mode):
        raise Unreadable("is no regular file")
    _check_size(about.st_size, most)


def _check_size(size: int, most: str) -> None:
    if size > limit(most):
        raise Unreadable(f"is too large: {size} bytes, at most {limit(most)} are read; {raised_by(most)}")


def read_text(path: Traversable, most: str = "text_bytes") -> str:
    """A file's UTF-8 text without a byte-order mark; Unreadable if it is none."""
    try:
        return bounded_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(error) from None


def not_utf8(error: UnicodeDecodeError, first_line: int = 1) -> Unreadable:
    """The error of a text that cannot be decoded, with the line and the character where that begins.

    Args:
        error: of the part that was decoded.
        first_line: number of the part's first line in the file.
    """
    before = error.object[: error.start]
    line = before.count(b"\n") + first_line
    character = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
    place = f"line {line}, character {character}"
    return Unreadable(f"is not UTF-8 text: {place} is byte {error.object[error.start]:#04x}; save the file as UTF-8")


def parse_json(text: str, finite: bool = True) -> Any:
    """A JSON value, read strictly.

    Args:
        text: JSON.
        finite: also refuse NaN, Infinity and numbers beyond floats; without it the caller looks for them, and can say
            whose number it is.

    Returns:
        The value.

    Raises:
        Unreadable: it is no JSON, nests too deeply, gives a key twice, holds NaN or Infinity, a number beyond floats or
            a text that no file can hold.

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
    """A file's JSON value, read as by `parse_json`; Unreadable if it is none."""
    return parse_json(read_text(path))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        doubled = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {doubled!r:.80} is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


_FINITE = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
_ANY = json.JSONDecoder(object_pairs_hook=_unique)


class _Strict(Composer, SafeConstructor, Resolver):
    """Safe YAML without doubled keys, without aliases, of bounded depth, with numbers of bounded length."""

    depth = 0
    deepest = 50

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):  # type: ignore[attr-defined]  # of whichever parser
            raise yaml.YAMLError("aliases (*name) are not allowed; a task file can include another one")
        self.depth += 1
        if self.depth > self.deepest:
            raise yaml.YAMLError(f"it nests more than {self.deepest} deep; {raised_by('yaml_depth')}")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        if (
            isinstance(node, yaml.ScalarNode) and node.tag != _TEXT and len(node.value) > limit("yaml_number")
        ):  # 1:59:59:... is one number to YAML 1.1
            line = node.start_mark.line + 1
            raise yaml.YAMLError(
                f"line {line} has a number of {len(node.value)} characters; write a text in quotes; "
                f"{raised_by('yaml_number')}"
            )
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
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


class _PlainLoader(_Strict, Reader, Scanner, Parser):
    """Reads with what PyYAML has in Python, whose errors say most."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        _begin(self)


def _begin(loader: _Strict) -> None:
    Composer.__init__(loader)
    SafeConstructor.__init__(loader)
    Resolver.__init__(loader)


try:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]
except ImportError:  # PyYAML without libyaml
    _FastLoader: Any = None
else:

    class _FastLoader(_Strict, CParser):  # type: ignore[no-redef]
        """Reads with libyaml, several times as fast; what it refuses is read again for the error."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            _begin(self)


def parse_yaml(text: str) -> Any:
    """A YAML value, read safely and strictly.

    Args:
        text: YAML.

    Returns:
        The value: mappings, lists, texts, numbers, dates.

    Raises:
        Unreadable: it is no YAML, has a tag that would make an object, an alias or a doubled key, or nests too deeply.
    """
    try:
        try:
            value = _value(_FastLoader or _PlainLoader, text)
        except Exception:
            value = _value(_PlainLoader, text)
        json.dumps(value, ensure_ascii=False, default=str, skipkeys=True).encode("utf-8")
    except UnicodeEncodeError:
        raise Unreadable("is not valid YAML: a text holds half a surrogate pair") from None
    except RecursionError:
        raise Unreadable("is not valid YAML: it nests too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
        raise Unreadable(f"is not valid YAML: {' '.join(str(error).split())[:400]}") from None
    return value


def _value(loader: Callable[[str], Any], text: str) -> Any:
    one = loader(text)
    one.deepest = limit("yaml_depth")
    try:
        return one.get_single_data()
    finally:
        one.dispose()


def read_yaml(path: Traversable) -> Any:
    """A file's YAML value, read as by `parse_yaml`; Unreadable if it is none."""
    return parse_yaml(read_text(path, "yaml_bytes"))
