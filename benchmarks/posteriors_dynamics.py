"""SGLD, SGHMC and SGNHT of posteriors (torch), chain after chain, as it does not run several at once.

Arguments: cores, target (mixture or network), algorithm.
"""

from __future__ import annotations

import sys
import warnings

import worker

worker.pin_to(int(sys.argv[1]))
warnings.simplefilter("ignore", FutureWarning)  # of TensorDict, for each class of posteriors

import posteriors  # noqa: E402
import torch  # noqa: E402
from problem_dynamics import CENTRES, FRICTION, NEAR, STEP, VARIANCE  # noqa: E402
from problem_network import LAYERS, M, N, images  # noqa: E402
from torch import nn  # noqa: E402


def mixture():
    """Return a log density whose gradient has noise, where a chain begins, and what it reads in a step."""
    centres = torch.tensor(CENTRES)

    def log_posterior(theta, noise):
        value = torch.logsumexp(-((theta - centres) ** 2).sum(-1) / (2 * VARIANCE), 0)
        return value + (noise * theta).sum(), torch.tensor([])

    return log_posterior, lambda: 8 * torch.rand(2) - 4, lambda: torch.randn(2)


def network():
    """Return the log-likelihood of all images from a few, first parameters, and a few images."""
    pixels, classes = (torch.from_numpy(part) for part in images(N))
    x = pixels.float() / 255

    def made():
        return nn.Sequential(nn.Linear(LAYERS[0], LAYERS[1]), nn.ReLU(), nn.Linear(LAYERS[1], LAYERS[2]))

    shell = made()

    def log_posterior(parameters, batch):
        output = torch.func.functional_call(shell, parameters, (batch[0],))
        return -N * nn.functional.cross_entropy(output, batch[1]), torch.tensor([])

    def first():
        return {name: value.detach().clone() for name, value in made().named_parameters()}

    def batch():
        index = torch.randint(0, N, (M,))
        return x[index], classes[index]

    return log_posterior, first, batch


def main(cores: int, target: str, algorithm: str) -> None:
    torch.set_num_threads(cores)
    log_posterior, first, batch = {"mixture": mixture, "network": network}[target]()
    keeps, e = target == "mixture", STEP[target]
    h = e**0.5
    of = getattr(posteriors.sgmcmc, algorithm)
    settings = {"lr": e} if algorithm == "sgld" else {"lr": h, "alpha": FRICTION / h, "momenta": 0.0}
    transform = of.build(log_posterior, **settings)

    def work(chains: int, steps: int, seed: int) -> worker.Found:
        torch.manual_seed(seed)
        kept = []
        for _ in range(chains):
            state = transform.init(first())
            for _ in range(steps):
                state, _ = transform.update(state, batch(), inplace=False)
                if keeps:
                    kept.append(state.params)
        if not keeps:
            return {"accepted": 1.0}
        draws = torch.stack(kept[::10])

        def accepted() -> float:
            near = ((draws[:, None] - torch.tensor(CENTRES)) ** 2).sum(-1) < NEAR**2
            return float(near.any(-1).float().mean())

        return {"accepted": accepted}

    worker.serve(work)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
