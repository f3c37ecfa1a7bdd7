"""Bytes <-> spec: guest frames, launcher plans, HTTP schema. Opens no socket and reads no clock."""
