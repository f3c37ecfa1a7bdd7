"""From records to events: which trajectories there are, the events of each, and what is wrong."""
