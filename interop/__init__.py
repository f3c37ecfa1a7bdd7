"""Real harnesses against a real node: `python -m interop`; CONTRIBUTING.md says how one is added."""
