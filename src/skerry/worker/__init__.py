"""Owns rollouts: environment, policy, grading, trajectories. Uses a client that it is given."""
