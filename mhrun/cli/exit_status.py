"""Exit statuses of the command line."""

from __future__ import annotations

OK = 0
FAILED = 1
"""A check that fails, a part of a report that cannot be made, or too little memory."""
MISTAKE = 2
"""The user's: of a command line, a configuration, data, or an exception in the user's code."""
BUG = 70
"""A bug in mhrun; EX_SOFTWARE of sysexits.h."""
STOPPED = 130
"""Interrupted."""
