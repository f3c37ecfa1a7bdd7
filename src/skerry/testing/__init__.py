"""Public test tools: conformance suite of the backend seam, fakes with failure knobs, leak census."""
