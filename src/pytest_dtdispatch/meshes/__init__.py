"""Where ops run: process groups and device meshes."""
