"""A small convolutional network for images (1, 8, 8) of ten classes."""

from torch import nn


class Net(nn.Sequential):
    """Returns ten outputs for each image, whose softmax are the probabilities of the classes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__(
            nn.Conv2d(1, width, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9 * width, 10)
        )
