"""Ways to break a file: blind changes of bytes, and changes of what JSON, YAML and CSV files mean."""

from __future__ import annotations

import copy
import csv
import io
import json
import random
from collections.abc import Callable

import yaml

HOSTILE = (
    *("", " ", "\0", "\x1b[2J\x1b]0;x\x07", "../../sentinel/secret.txt", "/etc/passwd", "..\\..\\x", "C:\\x", "CON"),
    *(".", "=cmd|' /C calc'!A0", "+1", "@SUM(A1)", "<script>alert(1)</script>", "[/bold]", "[red]", "{{7*7}}", "NaN"),
    *("{0.__class__}", "\u202egnp.exe", "a\u2028b", "\ud800", "💥" * 50, "x" * 5000, "inf", "null", "true", "1e999"),
    *("%s%n", "$(id)", "file:///etc/passwd", "http://127.0.0.1:9/", "!!python/object:os.system", "*x", "&x", "a/b"),
    "\\input{/etc/passwd}",
)
NUMBERS = (
    *(float("nan"), float("inf"), -float("inf"), 1e308, -1e308, -1, 0, 2**63, -(2**53) - 1, 10**400, 0.1, 1e-320),
    True,
)
MAGIC = (
    b"PK\3\4",
    b"\x93NUMPY",
    b"\x89PNG\r\n\x1a\n",
    b"%PDF-1.4",
    b"%!PS-Adobe-3.0 EPSF-3.0\n",
    b"\x1f\x8b\x08",
    b"\xff\xd8",
)


def bytes_mutated(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """A file with one to three blind changes; ``other`` is a second valid file of the format, to splice with."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _one_change(changed, other, rng)
    return bytes(changed)


def _one_change(data: bytearray, other: bytes, rng: random.Random) -> None:
    size = max(1, len(data))
    at = rng.randrange(size)
    kind = rng.randrange(9)
    if kind <= 1 and data:
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 16, 300)))
    elif kind == 4:
        width, there = rng.randrange(1, 1 + min(64, size)), rng.randrange(size)
        data[at : at + width], data[there : there + width] = data[there : there + width], data[at : at + width]
    elif kind == 5:
        data[at:] = other[rng.randrange(max(1, len(other))) :]
    elif kind == 6:
        del data[at : at + rng.choice((1, 2, 4, 32))]
    elif kind == 7:
        data[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\0\x80"))
    else:
        magic = rng.choice(MAGIC)
        data[: len(magic)] = magic


def value_mutated(value, rng: random.Random):
    changed = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        changed = _change_somewhere(changed, rng)
    return changed


def _change_somewhere(root, rng: random.Random):
    places = list(_places(root))
    if not places:
        return _changed(root, rng)
    holder, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif kind == 1:
        holder[rng.choice(HOSTILE)] = holder.pop(key)
    else:
        holder[key] = _changed(holder[key], rng)
    return root


def _places(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def _changed(value, rng: random.Random):
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice((None, [], {}, [[]], {"a": {}}, True, "x", 3))
    if kind == 1:
        deep = value
        for _ in range(rng.choice((1, 3, 30, 150))):
            deep = [deep] if rng.random() < 0.5 else {"x": deep}
        return deep
    if isinstance(value, str):
        hostile = rng.choice(HOSTILE)
        return hostile if kind < 4 else value + hostile
    if isinstance(value, bool | int | float):
        return rng.choice(NUMBERS) if kind < 4 else -value if kind == 4 else str(value)
    return rng.choice(HOSTILE)


def dump_json(value, rng: random.Random) -> bytes:
    """A value as JSON, at times with a key that is given twice."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.1 and text.startswith("{") and isinstance(value, dict) and value:
        key = rng.choice(list(value))
        text = "{" + json.dumps(key) + ": " + json.dumps(rng.choice(HOSTILE)) + ", " + text[1:]
    return text.encode("utf-8", "surrogatepass")


def json_mutated(content: bytes, rng: random.Random) -> bytes:
    return dump_json(value_mutated(json.loads(content), rng), rng)


def lines_mutated(content: bytes, rng: random.Random) -> bytes:
    """JSON lines of which one has another meaning, is there twice, is gone or has moved."""
    lines = content.decode().splitlines()
    at = rng.randrange(len(lines))
    kind = rng.randrange(7)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(rng.randrange(len(lines)), lines[at])
    elif kind == 2:
        rng.shuffle(lines)
    else:
        encoded = [line.encode() for line in lines]
        encoded[at] = json_mutated(encoded[at], rng)
        return b"\n".join([*encoded, b""])
    return ("\n".join(lines) + "\n").encode()


BEYOND_JSON = (
    *("x: !!python/object/apply:os.system ['touch sentinel/pwned']", "x: !!python/name:os.system", "? [a, b]\n: c"),
    *("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]", "task: again", "x: 2026-13-45", "x: !!int abc"),
    *("x: !!binary '@@'", "x: !!timestamp nonsense", "<<: {task: other}", "version: 0x10\nversion: 16", "x: .nan"),
    *("include: ../../sentinel/secret.yaml", "include: /etc/passwd", "1: 2\n0x1: 3", "---\nsecond: document", "\t"),
    *("x: 1:60:99", "x: !!set {a, b}", "x: !!omap [a]", "x: " + "9" * 5000),
)


def yaml_mutated(content: bytes, rng: random.Random) -> bytes:
    """YAML with another meaning, or with what YAML has beyond JSON: tags, aliases, bombs."""
    if rng.random() < 0.2:
        extra = rng.choice((*BEYOND_JSON, "x: " + "[" * rng.choice((60, 3000))))
        return content + extra.encode() + b"\n"
    value = value_mutated(yaml.safe_load(content), rng)
    try:
        return yaml.safe_dump(value, allow_unicode=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, ValueError):
        return dump_json(value, rng)


def csv_mutated(content: bytes, rng: random.Random) -> bytes:
    rows = list(csv.reader(io.StringIO(content.decode())))
    at = rng.randrange(len(rows))
    column = rng.randrange(len(rows[at]))
    kind = rng.randrange(8)
    if kind == 0:
        del rows[at]
    elif kind == 1:
        rows[at].append(rng.choice(HOSTILE))
    elif kind == 2:
        del rows[at][column]
    elif kind == 3:
        rows.insert(at, list(rows[at]))
    elif kind == 4:
        rows[at][column] = str(rng.choice(NUMBERS))
    elif kind == 5:
        rows[0][rng.randrange(len(rows[0]))] = rng.choice(rows[0])
    else:
        rows[at][column] = rng.choice((*HOSTILE, "1_0", "\u0661\u0662", "0x10", "12,5", "99.99999", "-0"))
    text = io.StringIO()
    csv.writer(text, lineterminator=rng.choice(("\n", "\r\n"))).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


Mutator = Callable[[bytes, random.Random], bytes]
