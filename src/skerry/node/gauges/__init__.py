"""What the node reads of its host, its backends and itself."""
