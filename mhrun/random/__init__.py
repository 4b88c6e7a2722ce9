"""Random numbers that are functions of (key, purpose, step, chain), not of history.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") is a block cipher on
a counter. Here the counter is (block, step, purpose, chain) and the key is the run's seed, so

- a chain's numbers do not depend on the number of other chains, on the threads, or on interruptions: resuming
  a run needs the step number and no generator state;
- an additional draw for one purpose does not shift the draws of any other;
- the torch path and the compiled loop (`mhrun.native.philox`) draw the same words.

There is one exception: `MANY` or more normals per chain and step on a GPU, see `Streams.many_normals`.

A minibatch without replacement is a prefix of a random permutation of the n data:

- its first n // 2 elements are the distinct values of a stream of independent uniform indices, in order of first
  occurrence;
- its other elements are the remaining indices in ascending order, shuffled by Fisher-Yates with a separate stream.
  Continuing the first stream would take n log n words.

Each element is therefore uniform over the remaining data for every n (up to the 2^-64 of a scaled 64-bit word).
A batch costs O(m), can be extended, and is a permutation at m = n.
"""

from mhrun.random.draws import MANY, Draws, Marks
from mhrun.random.streams import Purpose, Streams, derive_key

__all__ = ["MANY", "Draws", "Marks", "Purpose", "Streams", "derive_key"]
