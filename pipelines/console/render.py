"""Pages from templates. Texts from producers are escaped here, once for all templates.

Jinja escapes them as HTML. Control characters and marks that turn the direction of writing are
shown as their code, as on a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from pipelines import output
from pipelines.console import words
from pipelines.console.context import ConsoleContext
from pipelines.console.query_params import BadQueryError
from pipelines.console.urls import PAGES, link, section_of, url, with_query
from pipelines.explain.rows import Row
from txlake._counted import counted

_MEDIA_TYPES: Final = {"csv": "text/csv; charset=utf-8", "json": "application/json"}

# The title of each error's page, and what to do.
_ERRORS: Final = {
    400: ("Not understood", "The address or the form has a value that this page cannot use."),
    403: ("Not allowed", "Log in above, and send the form of the page that is open now."),
    404: ("Not there", "The field above finds orders, ids and groups, whatever is known of them."),
    405: ("Not understood", "This address is read, or it is written; not this way."),
    413: ("Too large", "Choose less at once."),
    500: ("This page failed", "The other pages work. Whoever runs the console has its log."),
    503: (
        "The lake or Kafka does not answer",
        "Nothing is lost: look again in a moment. `txlake doctor --conf FILE` tries everything.",
    ),
}


def _escape(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return output.printable(value)
    return value


def cell_class(name: str, row: Row) -> str:
    """Returns the classes of a cell: a number, a line, a text that wraps, or nothing to show."""
    value = row[name]
    if value is None or value == "":
        return "empty"
    if words.is_number(name, value):
        return "number"
    return "text" if words.is_sentence(name) else "line"


def can_be_copied(name: str, row: Row) -> bool:
    """Returns whether a button copies a cell: an id, or a text of which a part is left out."""
    value = row[name]
    if not isinstance(value, str) or not value or words.is_sentence(name) or words.is_status(name):
        return False
    return name == "transaction_id" or words.is_shortened(value)


_TEMPLATES: Final = Environment(
    loader=PackageLoader("pipelines.console"),
    autoescape=True,
    finalize=_escape,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals |= {
    "url": url,
    "link": link,
    "pages": PAGES,
    "iso": output.instant,
    "ago": output.ago,
    "span": output.span,
    "is_instant": output.is_instant,
    "for_people": output.humanize,
    "size": output.size,
    "heading": words.heading,
    "status_look": words.status_look,
    "status_words": words.status_words,
    "is_status": words.is_status,
    "is_sentence": words.is_sentence,
    "is_numeric": words.is_numeric,
    "filled": words.filled,
    "shorten": words.shorten,
    "is_shortened": words.is_shortened,
    "cell_class": cell_class,
    "can_be_copied": can_be_copied,
    "with_query": with_query,
    "counted": counted,
}


def page(request: Request, template: str, /, status: int = 200, **values: Any) -> HTMLResponse:
    """Returns a page. Input: the template's name without its ending, and its values."""
    site: ConsoleContext = request.app.state.site
    cookie = request.cookies.get(site.cookie_name)
    actor = site.sessions.actor(cookie)

    query = request.url.query
    common = {
        "site": site,
        "path": request.url.path,
        "section": section_of(request.url.path),
        "address": request.url.path + (f"?{query}" if query else ""),
        "page_counts": site.counts.of(getattr(request.state, "lake", None)),
        "now": output.now_ms(),
        "actor": actor,
        "form_value": site.sessions.form_value(str(cookie)) if actor else "",
    }

    text = _TEMPLATES.get_template(f"{template}.html").render({**common, **values})
    return HTMLResponse(text, status)


def error_page(request: Request, status: int, text: str) -> Response:
    """Returns the page of an error: its kind, its sentence, and what to do."""
    title, advice = _ERRORS.get(status, _ERRORS[400])
    return page(request, "error", status, error_title=title, text=text, advice=advice)


def export(request: Request, columns: Sequence[str], rows: Sequence[Row]) -> Response | None:
    """Returns the rows of a page as a file, if its address asks for one: `format` csv or json.

    The columns keep their own names, and instants are texts, as the commands print them.
    """
    kind = request.query_params.get("format")
    if kind is None:
        return None
    if kind not in _MEDIA_TYPES:
        raise BadQueryError(f"format = {kind!r}: one of {', '.join(_MEDIA_TYPES)} is allowed")

    records = [{name: output.to_machine(name, row[name]) for name in columns} for row in rows]
    text = json.dumps(records, ensure_ascii=False, indent=1)
    if kind == "csv":
        text = output.csv_text(columns, records)

    name = request.url.path.strip("/").replace("/", "_") or "overview"
    headers = {"content-disposition": f'attachment; filename="txlake_{name}.{kind}"'}
    return Response(text.encode(errors="replace"), media_type=_MEDIA_TYPES[kind], headers=headers)
