"""The wide ResNet of Zagoruyko and Komodakis (2016), https://arxiv.org/abs/1605.07146. timm has
none.
"""

from torch import Tensor, nn


class WideBlock(nn.Module):
    """A residual block: twice normalisation, ReLU and convolution, with dropout between the
    convolutions.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.shortcut = (
            nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x).relu()
        shortcut = x if self.shortcut is None else self.shortcut(y)
        return self.conv2(self.dropout(self.norm2(self.conv1(y)).relu())) + shortcut


class WideResNet(nn.Module):
    """The wide residual network 28-10 for images of 32 x 32: three groups of (28 - 4) / 6 blocks,
    ten times as wide as those of a ResNet.

    momentum: the share of the newest batch in the averages of batch normalisation.
    """

    def __init__(self, classes: int, dropout: float, momentum: float):
        super().__init__()
        layers = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
        inputs = 16
        for outputs, stride in ((160, 1), (320, 2), (640, 2)):
            for number in range(4):
                layers.append(WideBlock(inputs, outputs, stride if number == 0 else 1, dropout))
                inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(inputs)
        self.classifier = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                module.momentum = momentum

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.norm(self.layers(x)).relu().mean((2, 3)))
