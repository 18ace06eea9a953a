"""What figures are: signatures, samples, verdicts, files. Imports neither torch nor pytest."""
