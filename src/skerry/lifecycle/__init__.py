"""The states of a sandbox as a pure table: (state, event) -> (state, commands). Does no I/O."""
