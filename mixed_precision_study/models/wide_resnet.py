"""The wide ResNet of Zagoruyko and Komodakis (2016), https://arxiv.org/abs/1605.07146. timm has none."""

import torch


class WideBlock(torch.nn.Module):
    """Normalise, activate, convolve, twice, beside a shortcut; dropout lies between the convolutions."""

    def __init__(self, inputs, outputs, stride, dropout):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.BatchNorm2d(inputs), torch.nn.BatchNorm2d(outputs)
        self.conv1 = torch.nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.dropout = torch.nn.Dropout(dropout)
        self.shortcut = torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None

    def forward(self, x):
        y = self.norm1(x).relu()
        beside = x if self.shortcut is None else self.shortcut(y)
        return self.conv2(self.dropout(self.norm2(self.conv1(y)).relu())) + beside


class WideResNet(torch.nn.Module):
    """A wide residual network for images of 32 x 32: three groups of (depth - 4) / 6 blocks."""

    def __init__(self, classes, dropout, depth=28, width=10):
        super().__init__()
        blocks, layers = (depth - 4) // 6, [torch.nn.Conv2d(3, 16, 3, padding=1, bias=False)]
        inputs = 16
        for outputs, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            for number in range(blocks):
                layers.append(WideBlock(inputs, outputs, stride if number == 0 else 1, dropout))
                inputs = outputs
        self.layers, self.norm = torch.nn.Sequential(*layers), torch.nn.BatchNorm2d(inputs)
        self.classifier = torch.nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.classifier(self.norm(self.layers(x)).relu().mean((2, 3)))
