"""Contracts that everything else is built on; imports nothing else of rljax."""
