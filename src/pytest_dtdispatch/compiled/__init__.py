"""Compiled functions: what it costs to compile them, and to call them."""
