"""The wide ResNet is the published one."""

import torch

from mixed_precision_study.tasks.wide_resnet import WideBlock, WideResNet


def test_the_wide_resnet_is_the_published_one():
    with torch.device("meta"):  # without the time to fill it
        network = WideResNet(10, 0.3, momentum=0.2)
        assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    # 36.5 million in the paper
    assert sum(weight.numel() for weight in network.parameters()) == 36_479_194
    convolutions = [
        m for m in network.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3)
    ]
    assert len(convolutions) == 25  # with the three shortcuts of 1 x 1: 28
    blocks = [module for module in network.modules() if isinstance(module, WideBlock)]
    assert [block.dropout.p for block in blocks] == [0.3] * 12
    assert {block.norm1.momentum for block in blocks} == {0.2}


def test_a_shortcut_passes_the_input_on_where_shapes_agree():
    block = WideBlock(8, 8, 1, 0.0).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 8, 4, 4)
    assert torch.equal(block(x), x)
    assert WideBlock(8, 16, 2, 0.0)(x).shape == (2, 16, 2, 2)
