"""All uses of private names of torch, which are probed."""
