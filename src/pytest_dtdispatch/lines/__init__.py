"""Source lines of the program: the current line, and lines over time."""
