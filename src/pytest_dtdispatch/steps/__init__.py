"""Steps: what a step makes the dispatcher do, counted exactly."""
