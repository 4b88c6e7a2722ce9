"""``python -m mhrun``."""

from mhrun.cli.main import main

main()
