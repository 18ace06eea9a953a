"""The built-in benchmarks: ``pytest --dtdispatch --pyargs pytest_dtdispatch.suite``."""
