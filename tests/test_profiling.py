"""Where the time of a step goes: kernels by family, FLOPs, bytes, sizes."""

import os
import re
import types

import pytest
import torch
from explained_training import made_batches, make_record, make_trainer, random
from torch.nn import functional

from mixed_precision_study import profiling
from mixed_precision_study.profiling import (
    FORMULAS,
    FP16_KERNELS,
    KERNEL_FAMILIES,
    TENSOR_CORE_KERNELS,
    WorkCounter,
    busy_time,
    count_work,
    family_of,
    profile_steps,
    read_kernels,
    rnn_flops,
)

# Kernels by their names: (name, family, on Tensor Cores, fp16); most were seen on an H200

KERNELS = [
    ("Memcpy DtoD (Device -> Device)", "copy", False, False),
    ("Memset (Device)", "copy", False, False),
    ("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_"
     "cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(c10::BFloat16)#1}>",
     "copy", False, False),
    ("void at::native::vectorized_elementwise_kernel<8, at::native::float16_copy_kernel_cuda(at::TensorIteratorBase&)::"
     "{lambda(float)#1}, std::array<char*, 2ul> >", "copy", False, False),
    ("void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>(",
     "layout change", False, True),
    ("void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>(",
     "layout change", False, False),
    ("void cudnn::engines_precompiled::convertTensor_kernel<float, float, float, (cudnnKernelDataType_t)2>(float,",
     "layout change", False, False),
    ("void tensorTransformGeneric<__half, __half, float, true, false, false, (cudnnKernelDataType_t)0>(",
     "layout change", False, True),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
     "TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>",
     "optimizer", False, False),
    ("at::native::amp_update_scale_cuda_kernel(float*, int*, float const*, double, double, int)",
     "optimizer", False, False),
    ("void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, c10::Half, int>(torch::headeronly::",
     "depthwise convolution", False, True),
    ("dgrad2d_c1_k1_nhwc_specialized", "depthwise convolution", False, False),
    ("wgrad2d_shmem_tiling", "depthwise convolution", False, False),
    ("sm90_xmma_depthwise_convolution_wgrad_tiling_f16f16_f32f32_f32_nhwckrsc_nhwc_tilesize1x8x8_1x3x3_1x1x1_1x1x1_"
     "stage4_warpsize4x1x1_g32_betaTrue_execute_kernel__5x_cudnn", "depthwise convolution", False, True),
    ("void cudnn::bn_bw_1C11_kernel_new<__half, float, float2, 512, true, 1>(float, float, float, float,",
     "normalisation", False, True),
    ("void at::native::batch_norm_backward_kernel<c10::BFloat16, float, float, int>(torch::headeronly::detail::",
     "normalisation", False, False),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float,",
     "normalisation", False, False),
    ("triton_red_fused_add_native_batch_norm_backward_threshold_backward_28", "normalisation", False, False),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1_cga1x1x1_kernel0_0",
     "attention", True, False),  # so named in bf16 too
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80,",
     "attention", False, False),
    ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize256x64x8_stage3_warpsize2x2x1_g1_ffma_"
     "aligna4_alignc4_execute_kernel__5x_cudnn", "convolution", False, False),
    ("sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32_warpgroupsize1x1x1_g1_execute_"
     "segment_k_off_kernel__5x_cudnn", "convolution", True, False),
    ("sm90_xmma_wgrad_indexed_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_warpgroupsize1x1x1_g1_"
     "execute_segment_k_on_kernel__5x_cudnn", "convolution", True, True),
    ("sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_"
     "segment_k_off_kernel__5x_cudnn", "convolution", True, False),
    ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_64x64_64x5_nhwc_align8>(",
     "convolution", True, True),
    ("_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock22ImplicitGemmMultistage"
     "INS_4gemm9GemmShapeILi64ELi128ELi16EEENS_10tfloat32_tE_NS6_11threadblock9MmaPolicyINS6_4warp11MmaTensorOpINS7_",
     "convolution", True, False),
    ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*,",
     "convolution", False, False),
    ("void cudnn::winograd_nonfused::winogradWgradData4x4<float, float>(cudnn::winograd_nonfused::",
     "convolution", False, False),
    ("void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*, int, int,", "convolution", False, False),
    ("volta_scudnn_128x64_relu_interior_nn_v1", "convolution", False, False),  # other cards, from here
    ("turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_interior_nhwc_tn_v1", "convolution", True, True),
    ("volta_h884gemm_128x64_ldg8_nn", "matmul", True, True),
    ("turing_h1688gemm_128x128_ldg8_tn", "matmul", True, True),
    ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_nn", "matmul", True, True),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_nn", "matmul", True, False),
    ("volta_sgemm_128x64_nn", "matmul", False, False),  # to here
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(cutlass_80_simt_sgemm_128x256_8x4_nt_align1::",
     "matmul", False, False),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_32x3_nt_align1>(", "matmul", True, False),
    ("void cutlass::Kernel2<cutlass_75_tensorop_f16_s1688gemm_f16_256x128_nt_align1>(", "matmul", True, True),
    ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>(", "matmul", True, False),
    ("nvjet_sm90_hsh_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "matmul", True, True),
    ("nvjet_sm90_hss_64x128_64x8_1x2_h_bz_TNN", "matmul", True, True),
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "matmul", True, False),  # t: bf16
    ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float, false, true,",
     "matmul", False, False),
    ("void elemWiseRNNcell<__half, __half, float, (cudnnRNNMode_t)2, (cudnnRNNBiasMode_t)2>(int, int, int,",
     "recurrent cell", False, True),
    ("void GENERIC_elementWise_bp2<float, float, float, 4, (cudnnRNNBiasMode_t)2>(int, int, float*, float*,",
     "recurrent cell", False, False),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxBackward<4, float, float, float, at::native::(anonymous",
     "softmax and loss", False, False),
    ("void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(",
     "softmax and loss", False, False),
    ("void at::native::(anonymous namespace)::max_pool_forward_nhwc<float, int>(", "pooling", False, False),
    ("void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>(",
     "indexing", False, False),
    ("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::Half, at::native::func_wrapper_t<c10::Half,",
     "reduction", False, True),
    ("void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::",
     "reduction", False, False),
    ("void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*,",
     "elementwise", False, False),
    ("triton_poi_fused_add_threshold_backward_34", "elementwise", False, False),
    ("void cudnn::dropout_apply_mask<__half, float, 4>(float, __half*, __half const*, long, long, unsigned int const*)",
     "elementwise", False, True),
    ("void scal_kernel<float, float, 1, true, 6, 5, 5, 3>(cublasTransposeParams<float>, float const*,",
     "other", False, False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "family", "tensor_core", "fp16"), KERNELS, ids=[name[:60] for name, *_ in KERNELS])
def test_a_kernel_is_told_by_its_name(name, family, tensor_core, fp16):
    assert family_of(name) == family
    assert bool(re.search(TENSOR_CORE_KERNELS, name)) is tensor_core
    assert bool(re.search(FP16_KERNELS, name)) is fp16


def test_every_family_has_an_example():
    assert {family for _, family, _, _ in KERNELS} == {*KERNEL_FAMILIES, "other"}


@pytest.mark.parametrize(
    ("intervals", "busy"),
    [
        ([], 0),
        ([(0, 4)], 4),
        ([(0, 4), (6, 7)], 5),  # apart
        ([(6, 7), (0, 4)], 5),  # in any order
        ([(0, 4), (4, 7)], 7),  # one after the other
        ([(0, 4), (2, 7)], 7),  # overlapping
        ([(0, 10), (2, 3), (5, 6)], 10),  # one within the other
        ([(0, 10), (2, 3), (9, 12), (20, 21)], 13),
        ([(0, 4), (0, 4)], 4),
    ],
)
def test_busy_time_counts_overlapping_kernels_once(intervals, busy):
    assert busy_time(intervals) == busy


def kernel_like(words):
    """Return the first of the names above that has these words."""
    return next(name for name, *_ in KERNELS if words in name)


HALF_GEMM, CONV = kernel_like("nvjet_sm90_hsh"), kernel_like("fprop_implicit_gemm_f32f32_tf32f32")
BATCH_NORM, ADD = kernel_like("batch_norm_backward_kernel<c10::BFloat16"), kernel_like("CUDAFunctor_add")


def test_kernels_become_shares_and_busy_time():
    record = make_record()  # a step takes 2 ms
    millisecond = 1_000_000
    kernels = [
        (HALF_GEMM, 0, 1 * millisecond),
        (CONV, 1 * millisecond, 2 * millisecond),
        (ADD, 2 * millisecond, 1 * millisecond),  # on another stream, beside the convolution
        (BATCH_NORM, 5 * millisecond, 1 * millisecond),
    ]
    read_kernels(record, kernels, steps=4)
    assert record.kernels_per_step == 1
    assert record.gpu_busy_ms_per_step == 1  # 3 + 1 of 6 ms, in 4 steps
    assert record.gpu_busy_fraction == 0.5  # of the step as it was timed
    assert record.tensor_core_fraction == pytest.approx(3 / 5)
    assert record.fp16_kernel_fraction == pytest.approx(1 / 5)
    assert record.kernel_family_fractions[0] == ["convolution", pytest.approx(2 / 5)]
    families = {name for name, _ in record.kernel_family_fractions}
    assert families == {"convolution", "matmul", "elementwise", "normalisation"}
    assert sum(share for _, share in record.kernel_family_fractions) == pytest.approx(1)


def test_the_busy_fraction_is_at_most_1_and_shares_of_any_names_sum_to_1():
    record = make_record(step_ms_median=0.5)
    kernels = [(name, 1000 * number, 700 + 13 * number) for number, (name, *_) in enumerate(KERNELS)] * 20
    read_kernels(record, [*kernels, (ADD, 0, 5_000_000)], steps=1)
    assert record.gpu_busy_fraction == 1.0
    assert record.gpu_busy_ms_per_step > record.step_ms_median
    shares = [share for _, share in record.kernel_family_fractions]
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)


def pretend_profiler(monkeypatch, events):
    """Let torch.profiler see made-up events: (device, name, start ns, duration ns)."""

    def event(device, name, start, duration):
        answers = {"device_type": device, "name": name, "start_ns": start, "duration_ns": duration}
        return types.SimpleNamespace(**{key: lambda value=value: value for key, value in answers.items()})

    class Profiler:
        def __init__(self, activities, **_):
            results = types.SimpleNamespace(events=lambda: [event(*given) for given in events])
            self.profiler = types.SimpleNamespace(kineto_results=results)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

    monkeypatch.setattr(torch.profiler, "profile", Profiler)


def test_a_profile_takes_five_steps_and_passes_over_what_the_host_did(monkeypatch):
    host, device = "DeviceType.CPU", "DeviceType.CUDA"
    pretend_profiler(monkeypatch, [(device, ADD, 0, 5_000_000), (host, "aten::add", 0, 99_000_000)])
    record, trainer, given = make_record(), make_trainer(), []
    profile_steps(record, trainer, iter(made_batches(given, 9)), None)
    assert (trainer.steps, len(given)) == (5, 5)
    assert record.gpu_busy_ms_per_step == 1
    assert record.kernels_per_step == 1 / 5
    assert record.kernel_family_fractions == [["elementwise", 1]]


def test_a_profile_asks_for_cupti_to_be_taken_down_unless_the_user_says_otherwise(monkeypatch):
    for given, seen in ((None, "1"), ("0", "0")):
        with monkeypatch.context() as patch:
            patch.setenv("TEARDOWN_CUPTI", given or "")
            if given is None:
                patch.delenv("TEARDOWN_CUPTI")
            pretend_profiler(patch, [("DeviceType.CUDA", ADD, 0, 1)])
            profile_steps(make_record(), make_trainer(), iter(made_batches([], 9)), None)
            assert os.environ["TEARDOWN_CUPTI"] == seen


def test_a_profile_without_kernels_says_so(monkeypatch):
    pretend_profiler(monkeypatch, [("DeviceType.CPU", "aten::add", 0, 1)])
    with pytest.raises(RuntimeError, match="the profiler saw no kernel"):
        profile_steps(make_record(), make_trainer(), iter(made_batches([], 9)), None)


# FLOPs, bytes and sizes


def counted(work):
    """Return the WorkCounter of `work()`."""
    with WorkCounter() as counter:
        work()
    return counter


def test_flops_of_matmuls_are_two_for_each_multiply_add():
    assert counted(lambda: random(4, 16) @ random(16, 8)).flops == 2 * 4 * 16 * 8
    assert counted(lambda: torch.addmm(random(8), random(4, 16), random(16, 8))).flops == 2 * 4 * 16 * 8
    assert counted(lambda: torch.bmm(random(3, 4, 16), random(3, 16, 8))).flops == 3 * 2 * 4 * 16 * 8
    assert counted(lambda: random(4, 16) + 1).flops == 0


@pytest.mark.parametrize("groups", [1, 2, 8], ids=["plain", "grouped", "depthwise"])
@pytest.mark.parametrize(("image_grad", "factor"), [(True, 2), (False, 1)])
def test_flops_of_a_convolution_forward_and_backward(groups, image_grad, factor):
    image, weight = random(2, 8, 10, 10, grad=image_grad), random(8, 8 // groups, 3, 3, grad=True)
    forward = 2 * (2 * 8 * 10 * 10) * (8 // groups * 3 * 3)
    made = []
    assert counted(lambda: made.append(functional.conv2d(image, weight, padding=1, groups=groups))).flops == forward
    assert counted(lambda: made[0].sum().backward()).flops == factor * forward


def test_a_stride_counts_the_outputs_that_are_computed():
    image, weight = random(2, 8, 10, 10), random(16, 8, 3, 3)
    assert counted(lambda: functional.conv2d(image, weight, stride=2)).flops == 2 * (2 * 16 * 4 * 4) * (8 * 3 * 3)


def test_a_training_step_of_a_linear_layer_is_three_times_its_forward_pass():
    layer, x = torch.nn.Linear(16, 8), random(4, 16, grad=True)
    forward = counted(lambda: layer(x)).flops
    assert forward == 2 * 4 * 16 * 8
    assert counted(lambda: layer(x).sum().backward()).flops == 3 * forward
    assert counted(lambda: layer(x.detach()).sum().backward()).flops == 2 * forward  # the first layer of a model


def test_flops_of_an_rnn_are_those_of_its_weight_matrices():
    words = torch.empty(35, 20, 200)
    for network in (torch.nn.LSTM(200, 256, 2), torch.nn.GRU(200, 96), torch.nn.RNN(200, 64, 3, bidirectional=True)):
        weights = list(network.parameters())
        matrices = sum(weight.numel() for weight in weights if weight.dim() == 2)
        assert rnn_flops(words, weights, 4, None) == 2 * 35 * 20 * matrices
    lstm = list(torch.nn.LSTM(200, 256, 1).parameters())
    assert rnn_flops(words, lstm) == 2 * 35 * 20 * 4 * 256 * (200 + 256)
    backward = FORMULAS[torch.ops.aten._cudnn_rnn_backward]
    assert backward(words, lstm, 4, out_val=None) == 2 * rnn_flops(words, lstm)


def test_bytes_are_inputs_and_outputs():
    a, b, half = random(1000), random(1000), torch.ones(1000, dtype=torch.float16)
    assert counted(lambda: a + b).bytes == 3 * 4000
    assert counted(lambda: a.add_(b)).bytes == 3 * 4000  # read, read and written
    assert counted(lambda: half * 2).bytes == 2 * 2000
    assert counted(lambda: half.float()).bytes == 2000 + 4000
    assert counted(lambda: a.sum()).bytes == 4000 + 4
    assert counted(lambda: random(4, 16) @ random(16, 8)).bytes >= 4 * (4 * 16 + 16 * 8 + 4 * 8)
    assert counted(lambda: torch.cat([a, b])).bytes == 2 * 8000  # tensors in lists count as well


def test_views_and_empty_tensors_cost_nothing():
    a = random(10, 100)

    def look():
        a.view(1000)
        a.t()
        a[2:5]
        a.expand(3, 10, 100)
        a.split(5)
        a.unsqueeze(0)
        a.detach()
        torch.empty(10**6)
        torch.empty_like(a)

    assert counted(look).bytes == 0


def misaligned_share(work):
    counter = counted(work)
    return counter.misaligned_flops / counter.flops


@pytest.mark.parametrize(
    ("a", "b", "misaligned"),
    [
        ((4, 656), (656, 8), False),
        ((4, 650), (650, 8), True),  # the rows of the first
        ((4, 656), (656, 10), True),  # the rows of the second
        ((5, 656), (656, 8), False),  # how many rows there are does not matter
    ],
)
def test_a_matmul_is_misaligned_by_the_length_of_its_rows(a, b, misaligned):
    assert misaligned_share(lambda: random(*a) @ random(*b)) == misaligned
    assert misaligned_share(lambda: torch.bmm(random(3, *a), random(3, *b))) == misaligned


def test_a_transposed_matrix_has_the_rows_that_lie_in_memory():
    x = random(4, 16)
    assert misaligned_share(lambda: x @ random(10, 16).t()) == 0  # rows of 16
    assert misaligned_share(lambda: x @ random(16, 10)) == 1


def test_an_odd_vocabulary_is_misaligned_in_the_backward_pass():
    x = random(8, 16, grad=True)
    for words, misaligned in ((24, False), (10, True)):
        made = []
        forward = misaligned_share(lambda words=words, made=made: made.append(torch.nn.Linear(16, words)(x)))
        assert forward == 0  # the weight's rows are 16 long
        assert misaligned_share(lambda words=words, made=made: made[0].backward(random(8, words))) == misaligned


@pytest.mark.parametrize(
    ("channels", "out", "groups", "misaligned"),
    [
        (8, 16, 1, False),
        (3, 16, 1, True),  # an image's three colours
        (8, 20, 1, True),
        (8, 8, 8, False),  # depthwise: one channel for each group is no misfit
        (32, 32, 32, False),
        (12, 12, 12, True),  # but twelve channels are
        (32, 32, 8, True),  # grouped, four channels for each
    ],
)
def test_a_convolution_is_misaligned_by_its_channels(channels, out, groups, misaligned):
    image, weight = random(2, channels, 10, 10, grad=True), random(out, channels // groups, 3, 3, grad=True)
    made = []
    forward = lambda: made.append(functional.conv2d(image, weight, groups=groups))  # noqa: E731
    assert misaligned_share(forward) == misaligned
    assert misaligned_share(lambda: made[0].sum().backward()) == misaligned  # by its weight, as the forward pass


@pytest.mark.parametrize(("units", "misaligned"), [(200, False), (201, True), (256, False), (650, True)])
def test_an_rnn_is_misaligned_by_the_sizes_of_its_weights(units, misaligned):
    given = [random(35, 20, units), *torch.nn.LSTM(units, units, 2).parameters(), random(2, 20, units)]
    for operation in (torch.ops.aten._cudnn_rnn, torch.ops.aten._cudnn_rnn_backward):
        assert profiling.misaligned(operation, given) is misaligned


FORWARD = 2 * 4 * (16 * 24 + 24 * 8 + 8 * 8)
STEP = 3 * FORWARD - 2 * 4 * 16 * 24  # the batch itself needs no gradient


def test_the_work_of_a_step_is_counted_on_the_cpu():
    record, trainer = make_record(), make_trainer()
    before = [weight.detach().clone() for weight in trainer.weights]
    count_work(record, trainer, iter(made_batches([])), None)
    assert record.flops_per_step == STEP
    assert record.achieved_tflop_per_second == pytest.approx(STEP / 0.002 / 1e12)  # a step takes 2 ms
    assert record.misaligned_flops_fraction == 0
    assert record.bytes_per_step > 2 * sum(weight.nbytes for weight in trainer.weights)
    assert record.limit_reason is None
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.weights, strict=True))  # the optimizer counts too


def test_what_was_trained_before_does_not_add_to_the_bytes():
    first, second = make_record(), make_record()
    trainer = make_trainer()
    trainer.step(random(4, 16))  # its gradients are still there
    count_work(first, trainer, iter(made_batches([])), None)
    count_work(second, trainer, iter(made_batches([])), None)
    assert (first.flops_per_step, first.bytes_per_step) == (second.flops_per_step, second.bytes_per_step)


def test_what_the_optimizer_writes_in_place_is_counted():
    weights = [torch.zeros(1000), torch.zeros(24)]
    with WorkCounter() as counter:
        torch._foreach_add_(weights, [torch.ones(1000), torch.ones(24)])
    assert (
        counter.bytes == 3 * 1024 * 4 + 2 * 1024 * 4 - 1024 * 4 * 1
    )  # two reads and a write, and the ones were filled
    assert counter.flops == 0


def test_half_precision_moves_fewer_bytes_and_computes_as_much():
    single, half = make_record(), make_record("o3_fp16")
    count_work(single, make_trainer(), iter(made_batches([])), None)
    loss = lambda network, batch, hidden: (network(batch.half()).float().square().mean(), hidden)  # noqa: E731
    count_work(half, make_trainer("o3_fp16", loss), iter(made_batches([])), None)
    assert half.flops_per_step == single.flops_per_step
    assert half.bytes_per_step < 0.8 * single.bytes_per_step


def test_under_compile_bytes_are_null_with_a_reason():
    record, trainer = make_record(), make_trainer()
    trainer.model = compiled = object()
    trainer.loss_of = unused = object()  # the work is counted on the loss as it was written
    count_work(record, trainer, iter(made_batches([])), None)
    assert record.flops_per_step == STEP
    assert record.bytes_per_step is None
    assert "torch.compile" in record.limit_reason
    assert (trainer.model, trainer.loss_of) == (compiled, unused)


def test_work_without_arithmetic_has_no_misaligned_share():
    def sum_of_weights(network, batch, hidden):
        return sum(weight.sum() for weight in network.parameters()), hidden

    record = make_record()
    count_work(record, make_trainer(loss=sum_of_weights), iter(made_batches([])), None)
    assert record.flops_per_step == 0
    assert record.misaligned_flops_fraction is None
