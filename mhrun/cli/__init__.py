"""The command line: words to a configuration, then run, report, list or fetch."""
