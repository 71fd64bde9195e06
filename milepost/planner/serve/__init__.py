"""How fast a deployment serves, what a token costs there, and which arrangement of GPUs does it best."""
