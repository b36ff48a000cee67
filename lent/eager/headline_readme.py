from pathlib import Path
ROWS = [("resnet", "ResNet-18", "model == 'resnet18' and execution == 'compile_cuda_graph'", True),
        ("eff", "EfficientNet-B0", "model == 'tf_efficientnet_b0' and execution == 'compile_cuda_graph'", True),
        ("plain", "EfficientNet-B0, not compiled", "model == 'tf_efficientnet_b0' and execution == 'cuda_graph'", True),
        ("lstm", "LSTM", "model == 'lstm' and execution == 'compile_cuda_graph'", False)]
table, lines = ["|AMP over TF32|H200|H100|", "|---|---|---|"], []
for key, title, where, images in ROWS:
    for p in ("fp16", "bf16"):
        cells = []
        for card, file in (("", "ratios"), ("_then", "main/reference-h100/ratios")):
            name = f"{key}_{p}{card}"
            layout = " and channels_last == True" if images else ""
            lines += [f"{name}_row = {file} where {where}{layout} and precision == 'amp_{p}' and base == 'tf32'",
                      f"{name}: ratio of {name}_row as .2f", f"{name}_low: low of {name}_row as .2f", f"{name}_high: high of {name}_row as .2f"]
            cells.append(f"<!--{name}-->0<!--/--> (<!--{name}_low-->0<!--/-->–<!--{name}_high-->0<!--/-->)")
        table.append(f"|{title}, {p}|" + "|".join(cells) + "|")
lines += ["ours = ratios where base == 'tf32' and execution == 'compile_cuda_graph'",
          "theirs = main/reference-h100/ratios where base == 'tf32' and precision in ('amp_fp16', 'amp_bf16') and execution == 'compile_cuda_graph'",
          "amp: ratio of ours as .2f", "then: ratio of theirs as .2f", "n: processes of ours as word", "models: model of ours as count",
          "tf32 = trainings where model == 'tf_efficientnet_b0' and execution == 'compile_cuda_graph' and precision == 'tf32'",
          "saved_of = ratios where base == 'tf32'", "saved: saved of saved_of as .0%", 
          "compiled = trainings where execution == 'compile_cuda_graph'", "warm: warmup_seconds of compiled as .0f"]
text = f"""# Does the recommended recipe gain as much on an H200? (H200)

**ResNet-18 and the LSTM agree with an H100, and EfficientNet-B0 gains less. As compiled CUDA graphs AMP trains the <!--models-->0<!--/--> models <!--amp-->0<!--/--> times as fast as TF32. On an H100 it is <!--then-->0<!--/--> times.**

This is the recipe of the [README](../../../README.md): a compiled CUDA graph, and channels_last for images, with <!--n-->0<!--/--> processes a precision. It answers the [plan](../../../docs/contributors/plans.md) of a headline from a clean commit.

<picture>
  <source media="(max-width:600px)" srcset="picture-narrow.svg">
  <img alt="How many times as fast as TF32 fp16 and bf16 AMP train three models as CUDA graphs, as dots" src="picture.svg">
</picture>

{chr(10).join(table)}

( ) is a 95% interval over processes. By the plan two numbers agree where their intervals overlap, so EfficientNet-B0's do not. Overlap shows no equality, because ResNet-18's are a little lower, too. The H200 has the same Tensor Cores and faster memory, which may serve TF32 more, because TF32 moves twice the bytes. AMP's peak memory is <!--saved-->0<!--/--> below TF32's. [Report](summary.ipynb), [all ratios](ratios.csv), [all trainings](trainings.csv), [machine, limits and what came out](notes.md).

<!-- numbers
{chr(10).join(lines)}
-->
"""
Path("outputs/main/headline-h200/README.md").write_text(text)
