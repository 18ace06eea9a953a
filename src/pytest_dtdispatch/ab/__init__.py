"""Comparison of environments in fresh processes: ``dtdispatch ab``."""
