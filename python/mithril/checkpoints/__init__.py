"""Checkpoints: reading, writing and matching the files and folders that hold weights.

- `files`: models as JSON and parameters as safetensors;
- `weights`, `report`: checkpoints of any kind, and which tensor becomes which parameter;
- `gguf`, `llama_cpp`, `metadata`: GGUF files, and llama.cpp's names and metadata;
- `folders`: published checkpoints as folders, with ``config.json`` and what else lies beside the weights.
"""
