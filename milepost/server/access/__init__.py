"""Who may ask, for how much, and for how long."""
