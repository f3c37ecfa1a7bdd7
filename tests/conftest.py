"""Fixtures for all tests: the leak census."""

pytest_plugins = ["skerry.testing.pytest_plugin"]
