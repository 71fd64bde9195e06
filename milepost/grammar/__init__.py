"""What a reply may spell: grammars, and the masks over the vocabulary that hold a model to them."""
