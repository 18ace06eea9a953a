"""How a figure is taken."""
