import pytest
import torch
from small_training import compute_loss, make_batch, small_network

from mixed_precision_study.train.step import Trainer


def trained(device, precision, **options):
    """Return (losses, weights and running averages, operations) of four steps in channels_last."""
    network = small_network().to(device, memory_format=torch.channels_last)
    trainer = Trainer(network, precision, compute_loss, device=torch.device(device), lr=0.1, **options)
    images, labels = (part.to(device) for part in make_batch())
    batch = images.to(memory_format=torch.channels_last), labels
    with torch.profiler.profile() as profile:
        losses = [trainer.step(batch)[0].item() for _ in range(4)]
    assert torch.isfinite(network.eval()(images)).all()
    state = torch.cat([tensor.detach().flatten().float() for tensor in network.state_dict().values()])
    return losses, state, {event.name for event in profile.events()}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("precision", "by_cudnn"), [("fp32", True), ("amp_bf16", False)])
def test_a_compiled_step_leaves_normalisation_to_cudnn_where_eager_pytorch_has_it(device, precision, by_cudnn):
    eager, default, kept = (
        trained(device, precision),
        *(
            trained(device, precision, execution="compile", compile_mode=mode)
            for mode in ("default", "cudnn-batch-norm")
        ),
    )
    close = 1e-3 if precision == "fp32" else 0.03
    for losses, state, _ in (default, kept):
        assert losses == pytest.approx(eager[0], rel=close)
        torch.testing.assert_close(state, eager[1], rtol=close, atol=close)
    assert "aten::batch_norm_backward" not in default[2]
    assert ("aten::batch_norm_backward" in kept[2]) is by_cudnn
    assert ("aten::cudnn_batch_norm" in kept[2]) is (by_cudnn and device == "cuda")
