"""Backends make instances and hand over a byte channel to the guest agent inside; nothing more."""
