"""A trained policy as a static web page that plays its environment."""

from rljax.run.export.web.page import check_page, export_web

__all__ = ["check_page", "export_web"]
