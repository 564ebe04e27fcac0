"""Building blocks of self-contained HTML pages: they need no network and no server."""

from edgewise.pages.html_page import render_page, write_page

__all__ = ["render_page", "write_page"]
