"""Render a page as one HTML file: a layout, a base style and drawing tools, to which a page adds its own."""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from edgewise.files.output import replace_file

PACKAGE, FOLDER = "edgewise.pages", "parts"
NO_FILTERS: Mapping[str, Callable[..., object]] = MappingProxyType({})


def render_page(
    template: str,
    *,
    title: str,
    style: str = "",
    script: str = "",
    data: Mapping[str, object] | None = None,
    filters: Mapping[str, Callable[..., object]] = NO_FILTERS,
    **values: object,
) -> str:
    """Render a page that loads nothing: style, script and data are all in it, and nothing else may run.

    Parameters
    ----------
    template
        Jinja source that extends "layout.html.j2" and fills its blocks header, main and footer. Values are escaped.
    title
        The title of the window.
    style, script
        Added after base.css and base.js, which give a look in light and dark, on phones and in print, and the tools
        ``page`` to draw with. Without a script of its own a page has none at all.
    data
        What the script reads as JSON, from the element with the id "data"; only finite numbers.
    filters
        Functions that the template calls by name.
    values
        What the template shows.

    Examples
    --------
    >>> source = '{% extends "layout.html.j2" %}{% block main %}<p>{{ text }}</p>{% endblock %}'
    >>> "<p>1 &lt; 2</p>" in render_page(source, title="Numbers", text="1 < 2")
    True
    """
    whole_style = _inline("style", page_part("base.css") + style)
    whole_script = _inline("script", page_part("base.js") + script) if script else ""
    environment = Environment(
        loader=PackageLoader(PACKAGE, FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.from_string(template).render(
        title=title,
        style=Markup(whole_style),
        script=Markup(whole_script),
        data=None if data is None else Markup(embedded_json(data)),
        policy=content_security_policy(whole_style, whole_script),
        **values,
    )


def write_page(path: Path, html: str) -> None:
    """Write a page whole or not at all."""
    replace_file(path, lambda file: file.write_text(html, encoding="utf-8", newline="\n"))


def page_part(name: str, package: str = PACKAGE, folder: str = FOLDER) -> str:
    """Read a style, a script or a template that a package has in a folder."""
    return (files(package) / folder / name).read_text(encoding="utf-8")


def content_security_policy(style: str, script: str = "") -> str:
    """Allow a page its own inline style and script and nothing else, wherever from."""
    scripts = f"script-src {_hash(script)}; " if script else ""
    return f"default-src 'none'; style-src {_hash(style)}; {scripts}img-src data:; base-uri 'none'"


def embedded_json(document: Mapping[str, object]) -> str:
    r"""Write JSON in which no text can end the element around it.

    >>> print(embedded_json({"name": "</script>"}))
    {"name":"\u003c/script\u003e"}
    """
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _inline(element: str, text: str) -> str:
    """Refuse text that would end its element, after which the rest of it would be read as HTML."""
    if f"</{element}" in text.lower():
        raise ValueError(
            f"Expected a {element} that can stand in a page, but it has '</{element}'. Write it as '<\\/{element}'."
        )
    return text
