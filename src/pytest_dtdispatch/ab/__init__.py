"""Two environments compared in fresh processes: ``dtdispatch ab``, ``aa``, ``selftest``."""
