"""Data types and files of results: signatures, samples, verdicts. Imports neither torch nor pytest."""
