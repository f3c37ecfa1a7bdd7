"""The policy of function calls: how large a pool is, who gets which cell, when a container ends.

No I/O and no clock: every method that needs the time is given it. `skerry.node.functions` does what
is decided here, with containers of the container backend.
"""
