"""A GPT and its training as a plain script has them, without anything of the suite."""

import math

import torch
from torch.nn import functional

AUTOCAST = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}


class PlainGpt(torch.nn.Module):
    def __init__(self, weights, layers):
        super().__init__()
        copies = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
        self.weights = torch.nn.ParameterList(copies)
        self.layers = layers

    def forward(self, tokens):
        words, places, *layers, norm = self.weights
        x = words[tokens] + places[: tokens.shape[1]]
        for number in range(self.layers):
            first, inward, outward, second, widen, narrow = layers[6 * number : 6 * number + 6]
            batch, context, width = x.shape
            parts = functional.linear(functional.layer_norm(x, (width,), first), inward)
            heads = [
                part.view(batch, context, -1, 64).transpose(1, 2) for part in parts.split(width, 2)
            ]
            seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + functional.linear(seen.transpose(1, 2).reshape(x.shape), outward)
            hidden = functional.linear(functional.layer_norm(x, (width,), second), widen)
            x = x + functional.linear(functional.gelu(hidden), narrow)
        return functional.linear(functional.layer_norm(x, x.shape[-1:], norm), words)


def plain_losses(model, batches, precision, lr, make_optimizer=torch.optim.AdamW):
    """Train on batches (tokens, next tokens), and return the loss of each step."""
    device = batches[0][0].device.type
    groups = [
        {"params": [one for one in model.parameters() if one.dim() == 2], "weight_decay": 0.1},
        {"params": [one for one in model.parameters() if one.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = make_optimizer(groups, lr, betas=(0.9, 0.95), fused=device == "cuda")
    dtype, losses, rising = AUTOCAST.get(precision), [], max(1, len(batches) // 20)
    scaler = torch.amp.GradScaler(device, enabled=precision == "amp_fp16")
    for step, (tokens, next_tokens) in enumerate(batches):
        share = (step - rising) / max(1, len(batches) - rising)
        cosine = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * share))
        for group in optimizer.param_groups:
            group["lr"] = lr * ((step + 1) / rising if step < rising else cosine)
        optimizer.zero_grad()
        with torch.autocast(device, dtype, enabled=dtype is not None):
            logits = model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), next_tokens.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses
