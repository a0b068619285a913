"""Single changes of Python source, as mutation tests make them (`mutants.py`).

The operators:

- comparison: ``<`` and ``<=``, ``>`` and ``>=``, ``==`` and ``!=``, ``is`` and ``is not``, ``in`` and ``not in``
  exchanged
- arithmetic: ``+`` and ``-``, ``*`` and ``/``, ``<<`` and ``>>`` exchanged; ``//``, ``%`` and ``**`` become ``*``; all
  of them in ``+=`` and the like too; the minus of ``-x`` dropped
- constant: a whole number n becomes n + 1 (-1 becomes 0), another number x becomes 2 x (0.0 becomes 1.0), True and
  False exchanged
- boolean: ``and`` and ``or``, ``&`` and ``|`` exchanged; ``not x`` and ``~x`` become ``x``
- statement: a call, return, raise, continue, break, del, ``+=`` or assignment becomes ``pass``; an assignment only
  where the name keeps an earlier value, since any test notices a name without one

Left as they are: annotations, types that `isinstance` is asked about, decorators, asserts and ``strict=True``,
f-strings (texts of messages), numbers of versions, and what only type checkers read.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from dataclasses import dataclass, replace

_COMPARED: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
_COMPUTED: dict[type, type] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.LShift: ast.RShift},
    **{ast.RShift: ast.LShift, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
}
_COMBINED: dict[type, type] = {ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
_SIMPLE = (ast.Expr, ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Delete, ast.AugAssign)


@dataclass(frozen=True)
class Mutant:
    """One change of one place.

    Attributes:
        file: path below the checkout.
        operator: of the list above.
        place: name of the function or class, with those around it; empty at module level.
        line: number of the first changed line.
        before: the changed lines, spaces and line breaks as single spaces.
        after: the same with the change.
        span: first byte of the changed code, and the one after it.
        code: what replaces it, with as many line breaks.
    """

    file: str
    operator: str
    place: str
    line: int
    before: str
    after: str
    span: tuple[int, int]
    code: bytes

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names it in the list of equivalent mutants, also after lines have moved."""
        return self.file, self.place, self.before, self.after

    def apply(self, source: bytes) -> bytes:
        """The source of its file with the change."""
        return source[: self.span[0]] + self.code + source[self.span[1] :]


class _Collector:
    """Mutants of one file, in the order of the source."""

    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source, self.found = file, source, list[Mutant]()
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._walk(ast.parse(source), "", set())

    def _walk(self, node: ast.AST, function: str, bound: set[str]) -> None:
        """Goes through everything that runs; ``bound`` holds names that have a value by then."""
        types = isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            value = value[:1] if types and name == "args" else value
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _left_alone(child):
                    self._visit(child, function, bound)

    def _visit(self, node: ast.AST, function: str, bound: set[str]) -> None:
        self._mutate(node, function, bound)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            arguments = ast.walk(node.args) if isinstance(node, ast.FunctionDef) else ()
            inner = {argument.arg for argument in arguments if isinstance(argument, ast.arg)}
            self._walk(node, f"{function}.{node.name}".lstrip("."), inner)
        elif not _is_negative(node):
            self._walk(node, function, bound)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)

    def _mutate(self, node: ast.AST, function: str, bound: set[str]) -> None:
        if isinstance(node, ast.Compare):
            for at, operator in enumerate(node.ops):
                changed = copy.deepcopy(node)
                changed.ops[at] = _COMPARED[type(operator)]()
                self._add("comparison", function, node, changed)
        elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
            for operators, kind in ((_COMPUTED, "arithmetic"), (_COMBINED, "boolean")):
                if type(node.op) in operators:
                    changed = copy.deepcopy(node)
                    changed.op = operators[type(node.op)]()
                    self._add(kind, function, node, changed)
        elif isinstance(node, ast.UnaryOp):
            self._add("arithmetic" if isinstance(node.op, ast.USub) else "boolean", function, node, node.operand)
            if _is_negative(node):
                self._add("constant", function, node, ast.Constant(_next(ast.literal_eval(node))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            self._add("constant", function, node, ast.Constant(_next(node.value)))
        if function and _droppable(node, bound):
            self._add("statement", function, node, ast.Pass())

    def _add(self, operator: str, function: str, node: object, changed: ast.AST) -> None:
        breaks = "\n" * (node.end_lineno - node.lineno)
        text = ast.unparse(changed)
        code = f"{text}{breaks}" if isinstance(node, ast.stmt | ast.Constant) else f"({text}{breaks})"
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        first, last = self._starts[node.lineno - 1], self._starts[node.end_lineno]
        before, after = self._source[first:last], self._source[first:start] + code.encode() + self._source[end:last]
        shown = [" ".join(part.decode().split()) for part in (before, after)]
        self.found.append(
            Mutant(self._file, operator, function, node.lineno, shown[0], shown[1], (start, end), code.encode())
        )


def _left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg == "strict"  # of `zip`: an assert by another name
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]).endswith("VERSION")
    return isinstance(node, ast.JoinedStr | ast.Assert)


def _is_negative(node: ast.AST) -> bool:
    """Whether this is a negative number: one constant."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)


def _next(value: float) -> float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 2 * value or 1.0


def _droppable(node: ast.AST, bound: set[str]) -> bool:
    """Whether a function without this statement still runs up to where its value matters."""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)  # a docstring
    if isinstance(node, ast.Assign):
        names = [name for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        return all(not isinstance(name.ctx, ast.Store) or name.id in bound for name in names)
    return isinstance(node, _SIMPLE)


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """Every mutant of one file, in the order of its source; of those that read alike the later ones are numbered."""
    seen: Counter[tuple[str, ...]] = Counter()
    numbered = []
    for mutant in _Collector(file, source).found:
        seen[mutant.key] += 1
        number = f" #{seen[mutant.key]}" if seen[mutant.key] > 1 else ""
        numbered.append(replace(mutant, place=mutant.place + number))
    return numbered
