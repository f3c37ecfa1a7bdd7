"""Endurance: churn with faults injected, and a census at the end of each epoch. `make soak`."""
