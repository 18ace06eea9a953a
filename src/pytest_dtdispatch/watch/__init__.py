"""Loops outside pytest, and whole scripts, watched step by step."""
