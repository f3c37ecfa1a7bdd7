"""Append-only, hash-chained records: the node's journal and the rollouts' trajectories."""
