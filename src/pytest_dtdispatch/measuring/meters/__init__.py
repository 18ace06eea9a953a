"""What counts instructions: the processor's own counter, or callgrind. Without torch, but for the former."""
