"""What figures mean: fits and verdicts. Standard library only."""
