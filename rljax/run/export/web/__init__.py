"""A trained policy as a static web page that plays its environment."""

from rljax.run.export.web.page import describe_page, export_web

__all__ = ["describe_page", "export_web"]
