"""Jobs: what owns sandboxes in a trainer's stead, its lease, and pauses of all at once."""
