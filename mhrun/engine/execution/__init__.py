"""How the steps of a kernel are executed: one at a time, in a compiled loop, or as a captured graph."""
