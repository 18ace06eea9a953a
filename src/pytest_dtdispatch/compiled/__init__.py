"""Compiled functions: cost of compiling and of calling them."""
