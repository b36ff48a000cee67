"""Training loops in the style of public tutorials. Nothing in them knows of diagnose().

Each is a function of a number of steps. The style is that of: the CIFAR-10 loops that print accuracy after every batch;
the DCGAN tutorial; the character models that clip and use GradScaler.
"""

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def cifar_loop(steps):
    """Accuracy and loss are read after every batch, to print them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    net.to(DEVICE)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    images, labels = torch.randn(64, 3, 8, 8), torch.randint(0, 10, (64,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
    done = 0
    while done < steps:
        net.train()
        train_loss = correct = total = 0
        for inputs, targets in loader:
            inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
            optimizer.zero_grad()
            outputs = net(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            train_loss += loss.item()
            _, predicted = outputs.max(1)
            total += targets.size(0)
            correct += predicted.eq(targets).sum().item()
            done += 1
        scheduler.step()
    return train_loss / total


def gan_loop(steps):
    """Two optimizers; scores of both networks are read in every step."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.ConvTranspose2d(8, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1), nn.Tanh())
    discriminator = nn.Sequential(nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(32, 1), nn.Sigmoid())
    generator.to(DEVICE), discriminator.to(DEVICE)
    criterion = nn.BCELoss()
    of_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    scores = []
    for _ in range(steps):
        real = torch.randn(8, 3, 4, 4, device=DEVICE)
        discriminator.zero_grad()
        output = discriminator(real).view(-1)
        criterion(output, torch.ones(8, device=DEVICE)).backward()
        d_x = output.mean().item()
        fake = generator(torch.randn(8, 8, 1, 1, device=DEVICE))
        output = discriminator(fake.detach()).view(-1)
        criterion(output, torch.zeros(8, device=DEVICE)).backward()
        of_d.step()
        generator.zero_grad()
        output = discriminator(fake).view(-1)
        criterion(output, torch.ones(8, device=DEVICE)).backward()
        scores.append((d_x, output.mean().item()))
        of_g.step()
    return scores[-1]


def character_loop(steps):
    """GradScaler in fp16, with the gradients clipped before they are unscaled."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(32, 16), nn.Flatten(), nn.Linear(128, 32)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler(DEVICE)
    text = torch.randint(0, 32, (1000,))
    for iteration in range(steps):
        starts = torch.randint(len(text) - 9, (12,)).tolist()
        x = torch.stack([text[i : i + 8] for i in starts]).to(DEVICE)
        y = torch.stack([text[i + 8] for i in starts]).to(DEVICE)
        rate = 3e-4 * 0.5 * (1 + math.cos(math.pi * iteration / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return [parameter.detach().clone() for parameter in model.parameters()]


READS = "Every step reads a value from the device (foreign_loops.py:" if DEVICE == "cuda" else None
FOREIGN = {  # a loop: how its one mistake begins; None: a CPU has no device to wait for
    cifar_loop: READS,
    gan_loop: READS,
    character_loop: "Gradients are clipped while they are scaled.",
}
