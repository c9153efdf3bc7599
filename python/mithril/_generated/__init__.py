"""What is derived from the rows of the core."""
