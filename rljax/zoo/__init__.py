"""Trained agents that come with rljax, each in a folder that `rljax pack` made; `zoo:NAME` is their address."""
