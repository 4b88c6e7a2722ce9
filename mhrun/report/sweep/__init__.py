"""The report of a sweep: its table, figure, text and page."""
