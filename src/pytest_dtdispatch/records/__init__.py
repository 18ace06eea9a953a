"""What was measured: signatures, samples, measurements, the environment. Standard library only."""
