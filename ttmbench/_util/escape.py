"""Text from data made harmless for where it is shown: a terminal line, a CSV cell, Markdown, LaTeX."""

from __future__ import annotations

import re
import unicodedata

from ttmbench._util.limits import DEFAULTS, limit
from ttmbench.errors import UsageError

DEVICES = {"CON", "PRN", "AUX", "NUL", *(f"{port}{digit}" for port in ("COM", "LPT") for digit in range(1, 10))}
_FORMULA = "=+-@\uff1d\uff0b\uff0d\uff20"  # with the full-width forms, which spreadsheets of some languages take too
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
    }
)


def plain(text: str, keep: str = "\n\t") -> str:
    r"""Text without what a terminal obeys: control characters, half surrogates and marks that turn the direction.

    They are shown as escapes, all but those to ``keep``, so that nothing is hidden and nothing happens.

    >>> plain("a\x1b[2Jb\u202ec\n")
    'a\\x1b[2Jb\\u202ec\n'
    """
    if text.isascii() and text.isprintable():
        return text
    obeyed = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(
        ascii(letter)[1:-1] if letter not in keep and unicodedata.category(letter) in obeyed else letter
        for letter in text
    )


def is_text(text: str) -> bool:
    """Whether a text can be written as UTF-8: it holds no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def one_line(text: str, most: int | None = None) -> str:
    r"""Text as one plain line of bounded length.

    >>> one_line("two\nlines " + "x" * 50, most=20)
    'two lines xxxxxxxxxx... (60 characters)'
    """
    if most is None:
        try:
            most = limit("message_characters")
        except UsageError:  # this line may be the one that says so
            most = DEFAULTS["message_characters"]
    line = plain(" ".join(text[: 8 * most].split()), keep="")
    return line if len(line) <= most else f"{line[:most]}... ({len(text)} characters)"


def csv_cell(value: object) -> object:
    r"""A cell that no spreadsheet takes for a formula; what is no text stays as it is.

    >>> csv_cell('=HYPERLINK("x")'), csv_cell("clip"), csv_cell(-0.5)
    ('\'=HYPERLINK("x")', 'clip', -0.5)
    """
    if not isinstance(value, str):
        return value
    return f"'{value}" if value[:1] in ("\t", "\r", "\n") or value.lstrip()[:1] in tuple(_FORMULA) else value


def markdown(text: str) -> str:
    r"""Text that Markdown shows as it is: no markup, no HTML, no further cell or line.

    >>> markdown("a|b <i>_c_</i>")
    'a\\|b \\<i\\>\\_c\\_\\</i\\>'
    """
    return re.sub(r"([|\\<>`\[\]*_&!#~])", r"\\\1", plain(" ".join(text.split()), keep=""))


def latex(text: str) -> str:
    r"""Text that LaTeX sets as it is.

    >>> latex("50% of a_b")
    '50\\% of a\\_b'
    """
    return plain(" ".join(text.split()), keep="").translate(_LATEX)
