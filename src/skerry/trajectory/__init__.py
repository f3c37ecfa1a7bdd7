"""Append-only, hash-chained records: the node's journal, and what is made of it: trajectories."""
