"""Chat forms given as Hugging Face's Jinja templates: how they are read, rendered safely, and tokenised."""
