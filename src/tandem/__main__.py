"""`python -m tandem` is `tandem`."""

from tandem.cli.main import main

main()
