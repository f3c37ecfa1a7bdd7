"""From a node to a store that outlives it: sealed segments, tails, long contents."""
