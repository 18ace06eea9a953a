"""What figures mean: limits, fits, verdicts. Standard library only."""
