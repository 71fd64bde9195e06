"""What the server tells those who run it."""
