"""Exact counts of the work of the dispatcher in a step."""
