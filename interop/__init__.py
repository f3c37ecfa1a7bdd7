"""Real harnesses against a real node: `python -m interop`; README.md here says how."""
