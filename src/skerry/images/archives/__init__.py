"""Reading and writing tar, from origins that are not trusted."""
