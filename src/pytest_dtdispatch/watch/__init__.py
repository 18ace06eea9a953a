"""Watching of loops outside pytest, and of whole scripts, step by step."""
