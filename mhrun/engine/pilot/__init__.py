"""Pilot runs: they find the step size, the minibatch size and the scale that a method leaves open.

1. `start`: from the chains' first points, ascents to modes of the posterior, and the curvature H at the highest one
   (`mhrun.engine.landscape`, which also looks for what chains that begin there may miss). They read up to 20,000 data;
   with more, Newton steps on all data follow where the mode of the part may be off by more than half a standard
   deviation of the target.
2. The scale: a Cholesky factor S of H^-1 (``dense``) or 1 / sqrt(diag H) (``diagonal``). Proposals and dynamics then
   move in coordinates phi, theta = mode + S phi, in which the posterior at T = 1 has unit variance. Where that may not
   hold, as in a hierarchical model, because some directions have no curvature at the mode or the posterior is far from
   normal about it, draws of trajectories judge the scale (`trajectories`), and change it if it does not
   fit them (`adaptation`).
3. With trajectories of an open number of leapfrog steps: their length is a quarter of the longest period of the scaled
   target, pi/2 times its largest standard deviation, so that coordinates of a normal target end independent of where
   they began.
4. With an acceptance test, `acceptance` moves the chains and tunes the step size to an acceptance rate, and an open
   minibatch to the noise of the log-ratio (`minibatch`).
5. A dynamics gets the step size at which its stationary variance is 10 % too large on a quadratic posterior; of one
   that is given, the error is estimated (`dynamics`).

On a ladder the kernel of a rung is piloted, each chain at its own temperature and without exchanges. A kernel that
adapts its backward moves is piloted at their initial width.

The method's chains begin where the pilot leaves them. Its random numbers are functions of the seed and the method's
name: the same method has the same pilot.
"""

from mhrun.engine.pilot.open_settings import TooManyParameters, is_open, refusal
from mhrun.engine.pilot.result import PilotResult
from mhrun.engine.pilot.run import pilot, piloted
from mhrun.engine.pilot.sentences import pilot_warnings

__all__ = ["PilotResult", "TooManyParameters", "is_open", "pilot", "pilot_warnings", "piloted", "refusal"]
