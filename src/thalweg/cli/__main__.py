"""`python -m thalweg.cli`: the same as the command `thalweg`."""

from thalweg.cli import main

if __name__ == "__main__":
    main()
