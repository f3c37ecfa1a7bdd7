"""From what a sandbox wrote to a layer: walk, residue rules, packing."""
