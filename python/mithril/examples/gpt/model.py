"""GPT-2 under the import path of the documentation; it is one of `mithril.models`."""

from mithril.models import create_gpt

__all__ = ["create_gpt"]
