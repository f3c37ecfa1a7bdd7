"""Rollouts that are run again: recorded answers first, then the node goes on where it was."""
