"""`python -P -m suprank`, for when the `suprank` script is not on the PATH or belongs to another Python."""

from suprank.cli.main import main

if __name__ == "__main__":
    main()
