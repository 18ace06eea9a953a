"""Comparisons of variants of a call by results and cost, and of one call over sizes."""
