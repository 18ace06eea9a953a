"""Several ways to do the same, held against each other: what each gives, and what each costs."""
