"""`python -m tuner` is the command `tuner`, for those whose PATH does not have it."""

from tuner.cli import main

if __name__ == "__main__":
    main()
