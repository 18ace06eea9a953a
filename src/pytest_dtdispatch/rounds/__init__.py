"""Rounds of timed calls: what is recorded, how often, and which samples are proved. Without torch."""
