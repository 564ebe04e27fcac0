"""Self-contained HTML pages that need no network and no server."""

from edgewise.pages.html_page import render_page, write_page

__all__ = ["render_page", "write_page"]
