"""Tokenizers: text to token ids and back, read from ``tokenizer.json``, SentencePiece models and GGUF files.

They need the package ``tokenizers``: ``pip install tokenizers``.
"""
