"""`skerry demo --preempt`: rollouts whose trainer and workers are killed, seen by an outside witness."""
