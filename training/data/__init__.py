"""Training data: redistributable text, generated dialogues, and batches of both."""
