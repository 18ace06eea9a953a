"""Rules of gates: whether a run passes. Imports neither torch nor pytest."""
