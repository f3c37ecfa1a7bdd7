"""The worker's process: rollouts that survive it, and the requests of their models."""
