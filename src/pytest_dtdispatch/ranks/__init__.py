"""Runs on many ranks: launch, communication and merging of results."""
