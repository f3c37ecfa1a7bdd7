"""Block disks: written on a node, kept as chunks in the layer store, read back on demand anywhere."""
