"""Reports of results: tables, lines, files. Imports neither torch nor pytest."""
