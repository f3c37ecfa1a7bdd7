"""What lies where: segments, records, indices, and names in a store."""
