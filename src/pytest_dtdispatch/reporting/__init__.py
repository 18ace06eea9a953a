"""Tables of what was measured, and how they are written. Standard library only."""
