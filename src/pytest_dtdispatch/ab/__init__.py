"""Environments compared in fresh processes: dtdispatch ab."""
