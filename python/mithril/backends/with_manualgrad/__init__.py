"""Backends whose gradients come from Mithril's own gradient graph."""
