"""GPT-2 as an example."""
