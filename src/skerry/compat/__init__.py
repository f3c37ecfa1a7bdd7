"""Adapters by which harnesses that we did not write use Skerry, one module each.

Each needs its harness, which an extra installs (`pip install skerry[inspect]`); importing Skerry never
imports one. They hold mapping only: what a harness reveals about commands, files or lifecycles is
mended in the core.
"""
