"""Process groups and device meshes."""
