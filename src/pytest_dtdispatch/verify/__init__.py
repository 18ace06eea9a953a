"""Each DTensor op of a step against the same op on full tensors."""
