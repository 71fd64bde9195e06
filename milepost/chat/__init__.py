"""Tokenizers, chat encodings, and parsers of replies.

Start from `milepost.chat.tokenizer_folder.load_tokenizer` and `milepost.chat.families.chat_encoding`.
The package itself imports nothing: the command line uses its plain data without loading tokenizers.
"""
