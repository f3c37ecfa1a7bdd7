"""Host side of the guest channel: run, stream, files, terminal, forward. Knows no backend."""
