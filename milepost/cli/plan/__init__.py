"""``milepost plan``: the group, what its commands share, and a module for each command."""
