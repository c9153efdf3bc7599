"""Backends that bring their own automatic differentiation."""
