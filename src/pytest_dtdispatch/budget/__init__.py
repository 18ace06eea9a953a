"""Budget: where the wall time of a step goes."""
