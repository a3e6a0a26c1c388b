"""A module that cannot be imported."""

raise ValueError("it is broken")
