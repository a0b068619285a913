"""HTML pages that work offline: styles and scripts are in the page, and nothing else may run or load."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup, escape

from ttmbench.report.leaderboard import beats_chance
from ttmbench.report.table import NOTHING, percent
from ttmbench.report.text_table import marks
from ttmbench.results.numbers import Number

# Not allowed in HTML, or not encodable.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def render(
    template: str, styles: Sequence[str], scripts: Sequence[str], images: str = "data:", **values: object
) -> str:
    """Fill a template of this folder; values are escaped.

    The page's Content-Security-Policy allows exactly these CSS and JavaScript files, so nothing from data can run, and
    images only from ``images``.
    """
    css, js = ("\n".join(map(_text, names)) for names in (styles, scripts))
    policy = (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(js)}'; img-src {images}; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(template).render(css=Markup(css), js=Markup(js), policy=policy, **values)
    return _UNPRINTABLE.sub("\ufffd", page)


def number_cell(value: object, text: object) -> Markup:
    """A cell with a number to sort by; a template macro would be several times slower.

    >>> print(number_cell(None, "<-"), end="")
    <td class="number" data-value="">&lt;-</td>
    """
    return Markup(f'<td class="number" data-value="{escape("" if value is None else value)}">{escape(text)}</td>\n')


def percent_cell(value: float | None, digits: int = 2) -> Markup:
    """A cell with a fraction as percent."""
    return number_cell(value, percent(value, digits))


def marked(row: Number) -> str:
    """A number in percent, with its marks."""
    return percent(row.value) + marks(row)


def result_cell(
    row: Number | None,
    best: float | None = None,
    chance: float | None = None,
    interval: tuple[float, float] | None = None,
    rank: int | None = None,
) -> Markup:
    """A cell with a number of a run, to sort by; bold if it is the best, faint if it is not better than chance.

    With ``chance``, the level that the head of the column states, it has the number's own where that differs.
    """
    if row is None or row.value is None:
        return Markup(f'<td class="number" data-value>{NOTHING}</td>\n')
    ends = "" if row.interval is None else f", 95 % {percent(row.ci_low, 1)} to {percent(row.ci_high, 1)}"
    about = f"{row.metric.replace('_', ' ')}, {row.method}{ends}; {row.extent.words} groups; {row.file}"
    about += f", as {row.published_as}" if row.published_as else ""
    about += f"; but {row.disagrees}" if row.disagrees else ""
    kind = "number best" if row.value == best else "number" if beats_chance(row) else "number below"
    spread = "" if row.seed_std is None else f' <small class="spread">± {percent(row.seed_std)}</small>'
    spread += f"<small>{100 * interval[0]:.1f}–{100 * interval[1]:.1f}</small>" if interval is not None else ""
    level = "" if chance is None or row.chance in (None, chance) else f"<small>chance {percent(row.chance)}</small>"
    ranked = "" if rank is None else f' data-rank="{rank}"'
    text = f"{escape(marked(row))}{spread}{level}"
    return Markup(f'<td class="{kind}" data-value="{row.value}"{ranked} title="{escape(about)}">{text}</td>\n')


@cache  # templates are compiled once per environment
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ttmbench.report", "html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    helpers = (number_cell, percent_cell, result_cell, marked, percent, beats_chance)
    environment.globals |= {helper.__name__: helper for helper in helpers}
    return environment


def json_block(value: object) -> Markup:
    r"""JSON for a ``script`` element, without characters that could end the element or break a line.

    >>> print(json_block("</script>"))
    "\u003c/script\u003e"
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def _text(name: str) -> str:
    return (files("ttmbench.report.html") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
