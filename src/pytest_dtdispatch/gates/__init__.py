"""The rules by which a run passes or fails. Imports neither torch nor pytest."""
