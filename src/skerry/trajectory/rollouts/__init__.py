"""The records of jobs: hash-chained lines in a file, and how they are read."""
