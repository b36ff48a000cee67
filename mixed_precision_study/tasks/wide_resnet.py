"""The wide ResNet of Zagoruyko and Komodakis (2016), https://arxiv.org/abs/1605.07146. timm has
none.
"""

import torch


class WideBlock(torch.nn.Module):
    """A residual block: twice normalisation, ReLU and convolution, with dropout between the
    convolutions.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float):
        super().__init__()
        self.norm1 = torch.nn.BatchNorm2d(inputs)
        self.norm2 = torch.nn.BatchNorm2d(outputs)
        self.conv1 = torch.nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.dropout = torch.nn.Dropout(dropout)
        self.shortcut = (
            torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x).relu()
        shortcut = x if self.shortcut is None else self.shortcut(y)
        return self.conv2(self.dropout(self.norm2(self.conv1(y)).relu())) + shortcut


class WideResNet(torch.nn.Module):
    """A wide residual network for images of 32 x 32: three groups of (depth - 4) / 6 blocks.

    momentum: the share of the newest batch in the averages of batch normalisation.
    """

    def __init__(
        self, classes: int, dropout: float, momentum: float = 0.1, depth: int = 28, width: int = 10
    ):
        super().__init__()
        layers: list = [torch.nn.Conv2d(3, 16, 3, padding=1, bias=False)]
        inputs = 16
        for outputs, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            for number in range((depth - 4) // 6):
                layers.append(WideBlock(inputs, outputs, stride if number == 0 else 1, dropout))
                inputs = outputs
        self.layers = torch.nn.Sequential(*layers)
        self.norm = torch.nn.BatchNorm2d(inputs)
        self.classifier = torch.nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = momentum

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.norm(self.layers(x)).relu().mean((2, 3)))
