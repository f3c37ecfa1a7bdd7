"""The life of sandboxes: made, paused, resumed, drained, stopped, by request or by a deadline."""
