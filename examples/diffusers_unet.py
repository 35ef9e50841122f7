"""A small UNet of diffusers, made from a configuration, learns to take noise out of handwritten digits."""

import torch
from diffusers import DDPMScheduler, UNet2DModel
from sklearn.datasets import load_digits
from torch import nn

import smelt

images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=8,
    attention_head_dim=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)  # fmt: skip
compiled = smelt.compile(model)
scheduler = DDPMScheduler(num_train_timesteps=100)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
losses = []
for number in range(30):
    clean = images[(torch.arange(32) + 32 * number) % len(images)]
    noise, times = torch.randn_like(clean), torch.randint(0, 100, (32,))
    guess = compiled(scheduler.add_noise(clean, noise, times), times).sample
    loss = nn.functional.mse_loss(guess, noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())

model.eval()
sample = torch.randn(4, 1, 8, 8)
with torch.no_grad():
    for time in scheduler.timesteps[::10]:
        sample = scheduler.step(compiled(sample, time).sample, time, sample).prev_sample
print(f"loss {sum(losses[:5]) / 5:.3f} to {sum(losses[-5:]) / 5:.3f} with {smelt.stats()['graphs']} graphs")
assert sum(losses[-5:]) < 0.8 * sum(losses[:5]) and sample.isfinite().all()
