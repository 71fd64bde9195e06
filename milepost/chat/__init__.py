"""Text to token ids and back: tokenizers, chat encodings, reply parsers."""
