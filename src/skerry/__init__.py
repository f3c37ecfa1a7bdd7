"""Sandboxes in which AI agents are trained and evaluated."""

__version__ = "0.1.0"
