"""Instructions in place of time: what counts them, and where they went."""
