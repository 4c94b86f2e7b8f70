"""`python -m ragpg` is the command line."""

from ragpg.cli import main

main()
