"""The parameters of a notebook: what passes, and the sentence for what does not."""

import math

import pytest

from mixed_precision_study.errors import Stop
from mixed_precision_study.parameters import check_output_dir, check_parameters

PARAMETERS = {
    "dataset": "auto",
    "precisions": ["fp32"],
    "batch_size": 8,
    "epochs": 1,
    "max_steps": 0,
    "lr": 1,
    "loss_scale": "dynamic",
    "execution": "eager",
    "compile_mode": "default",
    "channels_last": False,
    "repeats": 1,
    "seed": 0,
}


def test_right_parameters_pass_and_a_whole_rate_becomes_a_float():
    checked = check_parameters(PARAMETERS, {"dataset": ("auto", "other")})
    assert checked == {**PARAMETERS, "lr": 1.0}
    assert type(checked["lr"]) is float


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"batch_size": -1}, "batch_size is -1; it must be a whole number of 1 or more"),
        ({"batch_size": 1.5}, "batch_size is 1.5"),
        ({"epochs": True}, "epochs is True"),
        ({"max_steps": -1}, "0 or more"),
        ({"lr": 0}, "lr is 0.0; it must be a number above 0"),
        ({"lr": math.inf}, "lr is inf"),
        ({"dataset": "mnist"}, "dataset is 'mnist'; possible are auto, other"),
        ({"precisions": ["fp99"]}, "some of fp32, tf32, amp_fp16, amp_bf16, o2_fp16, o3_fp16"),
        ({"precisions": []}, "precisions is"),
        ({"precisions": "fp32"}, "it must be a list"),
        ({"precisions": ["fp32", "fp32"]}, "each once"),
        ({"precisions": [["fp32"]]}, "it must be a list"),
        ({"data_dir": None}, "data_dir is None; it must be text in quotes"),
        ({"model": 18}, "model is 18; it must be text"),
        ({"loss_scale": "static"}, 'it must be "dynamic" or a number above 0'),
        ({"loss_scale": 0}, "loss_scale is 0"),
        ({"execution": "graph"}, "possible are eager, compile, cuda_graph, compile_cuda_graph."),
        ({"compile_mode": "fast"}, "possible are default, coordinate-descent, max-autotune-no-cudagraphs."),
        ({"channels_last": 1}, "True or False"),
    ],
)
def test_wrong_parameters_stop_with_one_sentence(wrong, sentence):
    with pytest.raises(Stop) as stopped:
        check_parameters({**PARAMETERS, **wrong}, {"dataset": ("auto", "other")})
    assert sentence in str(stopped.value)
    assert len(stopped.value._render_traceback_()) == 1


def test_an_output_folder_that_cannot_be_written_stops_with_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Stop, match=r"cannot be written .*choose another folder"):
        check_output_dir(str(tmp_path / "file"))
    check_output_dir(str(tmp_path / "new" / "folder"))
    assert list((tmp_path / "new" / "folder").iterdir()) == []
