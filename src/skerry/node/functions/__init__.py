"""Function calls: pools of containers, and what runs in them."""
