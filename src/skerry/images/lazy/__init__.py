"""Data blobs read on demand: a read-only FUSE file system over a store, checked and cached by chunk."""
