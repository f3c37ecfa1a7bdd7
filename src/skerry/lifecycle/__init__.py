"""The states of a sandbox as a pure table: (state, event) -> (state, commands). No I/O, no clock."""
