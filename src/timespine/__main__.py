"""`python -m timespine` is the same as `timespine`."""

from timespine.cli import main

if __name__ == "__main__":
    main()
