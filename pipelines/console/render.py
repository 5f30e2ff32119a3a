"""Pages from templates. Texts from producers are escaped here, once for all templates.

Jinja escapes them as HTML. Control characters and marks that turn the direction of writing are
shown as their code, as on a terminal.
"""

from __future__ import annotations

from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from pipelines import output
from pipelines.console.context import ConsoleContext
from pipelines.console.urls import PAGES, link, url
from txlake._counted import counted


def _escape(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return output.printable(value)
    return value


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
    "heading": output.heading,
    "counted": counted,
}


def page(request: Request, template: str, /, status: int = 200, **values: Any) -> HTMLResponse:
    """Returns a page. Input: the template's name without its ending, and its values."""
    site: ConsoleContext = request.app.state.site
    cookie = request.cookies.get(site.cookie_name)
    actor = site.sessions.actor(cookie)

    common = {
        "site": site,
        "path": request.url.path,
        "now": output.now_ms(),
        "actor": actor,
        "form_value": site.sessions.form_value(str(cookie)) if actor else "",
    }

    text = _TEMPLATES.get_template(f"{template}.html").render({**common, **values})
    return HTMLResponse(text, status)
