"""The command line."""

import gc
import os

# NumPy's matrix products wait for all threads: beside another process, small ones take a hundred times as long on two.
# It reads this when it is imported, which is later than this module.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Imports make hundreds of thousands of objects that stay. Looking through them after every 700 takes a tenth of the
# time that they take.
gc.set_threshold(10_000, 10, 10)
