"""CLIP as an example."""
