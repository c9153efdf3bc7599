"""GPT-2 under the import path of the documentation; it is defined in `mithril.models.gpt`."""

from mithril.models.gpt import create_gpt

__all__ = ["create_gpt"]
