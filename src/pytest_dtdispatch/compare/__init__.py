"""Comparison of variants of a call: their results and their cost."""
