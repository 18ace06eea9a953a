"""The plugin: what pytest calls. Nothing else of ours imports pytest."""
