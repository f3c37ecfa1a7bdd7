"""What is appended to: the files of a journal, what lives in them, and their recovery."""
