"""`python -m suprank` is the command `suprank`."""

from suprank.cli.main import main

if __name__ == "__main__":
    main()
