"""What is derived from the definitions in the core."""
