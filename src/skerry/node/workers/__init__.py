"""The node's workers: processes that it supervises, and what it relays to them from inside."""
