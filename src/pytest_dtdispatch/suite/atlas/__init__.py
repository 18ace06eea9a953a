"""The atlas: costs of every op that DTensor has a rule for, on this machine."""
