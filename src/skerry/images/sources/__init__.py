"""Where layers come from besides archives and registries."""
