"""Text from models: a decoder is run token by token, with a cache; tokens are chosen and become text.

Tokenizers need the package ``tokenizers``: ``pip install tokenizers``.
"""

from ..tokenizers.tokenizer import Tokenizer
from ..tools.web.decoder import export_decoder
from .decoders import compile_decoder, compile_encoder
from .sampling import Sampling
from .text import EncoderDecoder, Generated, TextGenerator
from .tokens import Continuation, generate_tokens

__all__ = [
    "Continuation",
    "EncoderDecoder",
    "Generated",
    "Sampling",
    "TextGenerator",
    "Tokenizer",
    "compile_decoder",
    "compile_encoder",
    "export_decoder",
    "generate_tokens",
]
