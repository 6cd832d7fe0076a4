"""`python -m steadytune` is the command `steadytune`."""

from steadytune.cli import main

if __name__ == "__main__":
    main()
