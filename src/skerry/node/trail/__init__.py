"""The record of what is done to sandboxes: written, made durable, and shipped."""
