"""Layers by digest: stores, import, rootfs plans, diff and commit. Mounts nothing."""
