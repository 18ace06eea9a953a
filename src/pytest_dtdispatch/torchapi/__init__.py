"""All private names of torch that the package uses, found by probing."""
