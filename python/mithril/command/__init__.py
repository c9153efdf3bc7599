"""The command line: its arguments, and the models and weights that they name."""
