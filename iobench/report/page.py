"""The report as one HTML page that needs nothing from outside: no script, no font, no request."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import jinja2

from iobench.report import models, words
from iobench.report.view import View


def render(view: View) -> str:
    """Return the page; every text from the records is escaped."""
    return template("page.html.j2").render(
        view=view,
        model_columns=models.COLUMNS,
        model_numeric=models.NUMERIC,
        made=words.MADE,
        definitions=words.DEFINITIONS,
        css=css(),
    )


def template(name: str) -> jinja2.Template:
    """Return a template of this package; every text put into it is escaped."""
    return _environment().get_template(name)


def css() -> str:
    """Return the style sheet of all pages."""
    return _read("page.css")


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_read), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip


def _read(name: str) -> str:
    return files("iobench.report").joinpath(name).read_text(encoding="utf-8")
