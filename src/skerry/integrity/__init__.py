"""Rewards that cannot be faked: protected paths, diff audit, verification, verdicts."""
