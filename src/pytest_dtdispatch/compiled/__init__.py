"""Compiled functions: the cost of compiling and of calling them."""
