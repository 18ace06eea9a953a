"""The atlas: what every op that DTensor's propagator has a rule for costs here."""
