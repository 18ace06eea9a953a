"""How the cost of a call grows with a size."""
