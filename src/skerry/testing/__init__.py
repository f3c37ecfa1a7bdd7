"""Public test tools: conformance suite of the backend seam, fakes that fail, leak census."""
