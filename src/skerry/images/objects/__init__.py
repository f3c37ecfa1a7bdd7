"""Where a layer store keeps its bytes: one seam, a directory and an object store behind it."""
