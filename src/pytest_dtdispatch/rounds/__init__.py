"""Rounds of timed calls: plan, timing, and proof of samples. Does not import torch."""
