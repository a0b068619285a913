"""Text from data in places where it must not become code: LaTeX, spreadsheets and terminals."""

from __future__ import annotations

from typing import Any

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\n": " ",
        "\r": " ",
    }
)


def latex(text: str) -> str:
    r"""Text as LaTeX prints it.

    >>> latex("group_match & 50%")
    'group\\_match \\& 50\\%'
    """
    return text.translate(_LATEX)


def no_formula(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: a quote goes in front of text that looks like one.

    >>> no_formula("=1+1"), no_formula(-0.5), no_formula("siglip-b16")
    ("'=1+1", -0.5, 'siglip-b16')
    """
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


def terminal(text: str) -> str:
    r"""Text that moves no cursor and changes no colour: control characters are shown as question marks.

    >>> terminal("red \x1b[31m and\ttab")
    'red ?[31m and?tab'
    """
    return "".join(one if one.isprintable() else "?" for one in text)
