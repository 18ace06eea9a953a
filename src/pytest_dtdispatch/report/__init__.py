"""What is said of results: tables, lines, files. Imports neither torch nor pytest."""
