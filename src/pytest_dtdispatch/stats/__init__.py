"""Statistics, each with its source. Imports neither torch nor pytest."""
