"""Statistical functions with their sources. Imports neither torch nor pytest."""
