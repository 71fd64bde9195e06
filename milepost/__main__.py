"""``python -m milepost`` is the command ``milepost``."""

from milepost.cli import main

if __name__ == "__main__":
    main()
