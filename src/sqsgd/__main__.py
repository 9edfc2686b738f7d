"""``python -m sqsgd`` is the command line."""

from sqsgd.cli import main

if __name__ == "__main__":
    main()
