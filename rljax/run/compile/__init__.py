"""Programs compiled for devices that need not be there: do they fit, what do they start, what bounds them."""

from rljax.run.compile.program import CompileReport, compile_for

__all__ = ["CompileReport", "compile_for"]
