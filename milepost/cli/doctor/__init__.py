"""``milepost doctor``: what this machine can do for a server, what is missing and what to change."""

from milepost.cli.doctor.command import doctor

__all__ = ["doctor"]
