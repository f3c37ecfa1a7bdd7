"""Commands: asked, started at most once, carried to a recorded answer; sessions included."""
