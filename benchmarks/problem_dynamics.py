"""The work of the dynamics: SGLD, SGHMC and SGNHT on a mixture of 25 Gaussians, and on the 784-200-10 network.

On the mixture (Zhang et al. 2020, section 5.1) every gradient is the density's own with normal noise of variance 1 in
each coordinate, and every draw is kept. On the network a step reads m images, drawn independently, and none is kept; no
prior. In step-scaled variables: theta' = theta + e g + sqrt(2 e) z; or v' = (1 - s) v + e g + sqrt(2 a e) z and
theta' = theta + v', where s = a, or s' = s + |v'|^2 / D - e. Others say h = sqrt(e) for the step and a / h for the
friction.
"""

from __future__ import annotations

import itertools

from problem_network import RATE, N

CENTRES = [list(map(float, c)) for c in itertools.product((-4, -2, 0, 2, 4), repeat=2)]
VARIANCE = 0.03
ALGORITHMS = ("sgld", "sghmc", "sgnht")
FRICTION = 0.1
# e. Both peers step theta by the old momentum: their SGHMC is stable in a mode for e / VARIANCE < FRICTION only.
STEP = {"mixture": 0.002, "network": RATE / N}
NEAR = 0.25  # of a centre: the share of draws there tells that the work is the same
