"""Rewards that cannot be faked: path rules, diff audit, submission filter, verdicts. No I/O."""
