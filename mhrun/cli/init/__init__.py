"""``mhrun init``: a project that is ready to run, from a table or empty."""
