"""One command, `skerry`."""
