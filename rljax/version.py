"""The version, in a module that imports nothing: what writes it into files is imported by `rljax` itself."""

__version__ = "0.1.0"
