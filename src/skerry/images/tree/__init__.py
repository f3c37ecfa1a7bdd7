"""The files of a layer before they are packed, and careful ways through trees that may be hostile."""
