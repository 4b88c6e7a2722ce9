"""The command line."""

import os

# NumPy's matrix products wait for all threads: beside another process, small ones take a hundred times as long on two.
# It reads this when it is imported, which is later than this module.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
