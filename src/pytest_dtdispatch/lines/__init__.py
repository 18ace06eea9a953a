"""Source lines of the program: which line runs, and lines over time."""
