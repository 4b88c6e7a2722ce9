"""A plain torch step of stochastic gradient descent on the network, one chain: what a user's own loop costs.

Arguments: cores, number of data.
"""

from __future__ import annotations

import sys

import worker

worker.pin_to(int(sys.argv[1]))

import torch  # noqa: E402
from problem_network import LAYERS, RATE, M, images  # noqa: E402
from torch import nn  # noqa: E402


def main(cores: int, n: int) -> None:
    torch.set_num_threads(cores)
    pixels, classes = (torch.from_numpy(part) for part in images(n))
    x = pixels.float() / 255

    def work(chains: int, steps: int, seed: int) -> dict[str, float]:
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(LAYERS[0], LAYERS[1]), nn.ReLU(), nn.Linear(LAYERS[1], LAYERS[2]))
        optimiser = torch.optim.SGD(network.parameters(), lr=RATE)
        for _ in range(steps * chains):
            index = torch.randint(0, n, (M,))
            loss = nn.functional.cross_entropy(network(x[index]), classes[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return {"accepted": 1.0}

    worker.serve(work)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
