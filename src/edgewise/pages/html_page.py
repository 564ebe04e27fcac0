"""Rendering of self-contained HTML pages from a template, with a shared layout, style and drawing functions."""

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
    """Render a page with inline style, script and data. Its content security policy blocks everything else.

    Parameters
    ----------
    template
        Jinja source that extends "layout.html.j2" and fills its blocks header, main and footer. Values are escaped.
    title
        The document title.
    style, script
        Appended to base.css (light, dark, narrow and print styles) and base.js (drawing functions in ``page``). If
        ``script`` is empty, the page has no script at all.
    data
        JSON for the script, in the element with the id "data". Numbers must be finite.
    filters
        Jinja filters by name.
    values
        Variables of the template.

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
    """Write a page atomically."""
    replace_file(path, lambda file: file.write_text(html, encoding="utf-8", newline="\n"))


def page_part(name: str, package: str = PACKAGE, folder: str = FOLDER) -> str:
    """Read a style sheet, script or template from a folder of a package."""
    return (files(package) / folder / name).read_text(encoding="utf-8")


def content_security_policy(style: str, script: str = "") -> str:
    """Return a policy that allows only this inline style and script, by hash, and data: images."""
    scripts = f"script-src {_hash(script)}; " if script else ""
    return f"default-src 'none'; style-src {_hash(style)}; {scripts}img-src data:; base-uri 'none'"


def embedded_json(document: Mapping[str, object]) -> str:
    r"""Encode JSON without the characters <, > and &, so that no text can close the element around it.

    >>> print(embedded_json({"name": "</script>"}))
    {"name":"\u003c/script\u003e"}
    """
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _inline(element: str, text: str) -> str:
    """Raise ValueError if the text contains the closing tag of its element."""
    if f"</{element}" in text.lower():
        raise ValueError(f"Expected a {element} without '</{element}', but found it. Write it as '<\\/{element}'.")
    return text
