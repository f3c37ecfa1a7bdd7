"""Programs that run in a function container's interpreter, never imported here: Python 3.7 and newer."""
