"""What is made of events: files for other programs, comparisons, figures."""
