"""bf16_true, fp8, AdamW and the device's scaler on a GPU; skipped where there is none."""

import pytest
import torch
from conftest import run_cells

from mixed_precision_study.measure.memory import release_memory
from mixed_precision_study.parameters import Unsupported
from mixed_precision_study.train.float8 import FORWARD, GRADIENT, product, scaled
from mixed_precision_study.train.precision import check_supported, set_fp32_precision

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
WORDS = {"dataset": "synthetic", "model": "transformer", "epochs": 1, "max_steps": 60, "generate_words": 0}
WORDS |= {"optimizer": "adamw", "lr": 0.0003, "units": 512, "heads": 8, "batch_size": 32, "bptt": 64}


def supported(*precisions):
    for precision in precisions:
        try:
            check_supported(precision, "eager", GPU)
        except Unsupported as reason:
            pytest.skip(str(reason))


def records_of(notebook, **given):
    release_memory(GPU)
    records = {record.precision: record for record in run_cells(notebook, "run", **given)["records"]}
    for record in records.values():
        assert record.status == "ok", record.reason
    return records


@pytest.mark.parametrize("dtype", [FORWARD, GRADIENT])
def test_a_product_on_the_gpu_is_that_of_the_rounded_numbers(dtype):
    supported("fp8")
    torch.manual_seed(0)
    a = scaled(torch.randn(704, 512, device=GPU), dtype)
    b = scaled(torch.randn(256, 512, device=GPU), FORWARD)
    exact = (a.values.double() * a.scale.double()) @ (b.values.double() * b.scale.double()).t()
    for fast in (False, True):
        error = (product(a, b, fast).double() - exact).abs().max() / exact.abs().max()
        print(f"{dtype}, fast: {fast}: largest error {error:.1e} of the largest value")
        assert error < (0.02 if fast else 0.005)


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["eager", "compile_cuda_graph"])
def test_a_transformer_trains_in_fp8_as_in_bf16(execution):
    supported("fp8")
    given = WORDS | {"repeat": 1}
    (bf16,) = records_of("lstm_language_model", **given, precisions=["amp_bf16"]).values()  # eager, never compiled
    (fp8,) = records_of("lstm_language_model", **given, precisions=["fp8"], execution=execution).values()
    assert fp8.train_loss[-1] == pytest.approx(bf16.train_loss[-1], abs=0.05)
    assert fp8.fp8_linear_fraction == 1


@pytest.mark.slow
@pytest.mark.alone  # because beside others no ceiling is measured
def test_a_run_in_fp8_names_its_kernels_and_knows_its_ceiling():
    supported("fp8")
    (record,) = records_of("lstm_language_model", **WORDS, precisions=["fp8"]).values()
    print(record.kernel_family_fractions, record.ceiling_matmul_tflop_per_second)
    assert record.fp8_kernel_fraction > 0.02
    assert record.tensor_core_fraction >= record.fp8_kernel_fraction
    assert record.ceiling_matmul_tflop_per_second > 800 or "H" not in record.gpu_name


def test_a_width_that_is_no_multiple_of_16_is_unsupported_with_the_reason():
    supported("fp8")
    given = WORDS | {"units": 200, "precisions": ["fp8"]}
    (record,) = run_cells("lstm_language_model", "run", **given)["records"]
    assert record.status == "unsupported" and "multiples of 16" in record.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cifar_resnet", {"batch_size": 64}),
        ("efficientnet_regression", {"batch_size": 16, "image_height": 96, "image_width": 128}),
        ("lstm_language_model", {"generate_words": 0}),
    ],
)
def test_pure_bf16_trains_every_model_with_adamw_and_its_lost_updates_are_known(name, options):
    """With SGD test_gpu.py runs it, as a graph as well."""
    supported("bf16_true")
    given = {"dataset": "synthetic", "epochs": 1, "max_steps": 20, "execution": "cuda_graph"}
    given |= {"optimizer": "adamw", "lr": 0.001}
    (record,) = records_of(name, **given, **options, precisions=["bf16_true"]).values()
    assert record.update_reason is None and 0 <= record.lost_update_fraction <= 1
    assert record.parameter_dtypes == "bfloat16"
    lost, kept = record.lost_update_fraction, record.kept_update_fraction
    print(f"{name}: {lost:.0%} of the weights stood still, {kept:.0%} of the update arrived")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "amp_fp16", "o2_fp16", "bf16_true"])
def test_adamw_as_a_graph_trains_as_in_eager_mode(precision):
    supported(precision)
    set_fp32_precision(precision)
    losses = []
    for execution in ("eager", "cuda_graph"):
        given = {"dataset": "synthetic", "epochs": 2, "max_steps": 30, "batch_size": 64, "optimizer": "adamw"}
        (record,) = records_of(
            "cifar_resnet", **given, lr=0.0005, execution=execution, precisions=[precision], repeat=1
        ).values()
        losses.append(record.train_loss)
        assert record.host_syncs_per_step == (1 if (execution, precision[-4:]) == ("eager", "fp16") else 0)
    assert losses[1] == pytest.approx(losses[0], rel=0.03)


def test_with_the_devices_scaler_no_step_waits():
    given = {"dataset": "synthetic", "epochs": 2, "max_steps": 60, "batch_size": 64, "precisions": ["amp_fp16"]}
    records = [
        records_of("cifar_resnet", **given, scaler=scaler, repeat=1)["amp_fp16"] for scaler in ("pytorch", "device")
    ]
    print(f"amp_fp16 eager, step ms: {[round(record.step_ms_median, 2) for record in records]}")
    assert [record.host_syncs_per_step for record in records] == [1, 0]
    assert records[1].train_loss == pytest.approx(records[0].train_loss, rel=0.02)
