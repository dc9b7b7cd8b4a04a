"""A model to try the commands on: the MLPs of a recommender, on the first GPU, or in a smaller size on the CPU."""

import time

import torch
from torch import nn

torch.manual_seed(0)
ON_GPU = torch.cuda.is_available()
DEVICE, DTYPE, BATCH = ("cuda", torch.bfloat16, 4096) if ON_GPU else ("cpu", torch.float32, 64)
DENSE, EMBEDDED, HIDDEN = (13, 416, (512, 256, 128)) if ON_GPU else (16, 48, (128, 64, 32))
STEPS = 200
torch._inductor.config.freezing = not ON_GPU  # on a CPU, Inductor has a choice of kernels for frozen weights


def layers(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU behind each."""
    pairs = zip(sizes, sizes[1:])
    return nn.Sequential(*(layer for before, after in pairs for layer in (nn.Linear(before, after), nn.ReLU())))


class Recommender(nn.Module):
    """A bottom MLP for dense features, products of all pairs of features, and a top MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = layers(DENSE, *HIDDEN)
        features = EMBEDDED // 16 + 1
        self.top = layers(HIDDEN[-1] + features * features, *HIDDEN, 1)

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """The click rates."""
        x = self.bottom(dense)
        features = torch.cat((x[:, None, :], embedded), dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        return self.top(torch.cat((x, products.flatten(1)), dim=1))


def main() -> None:
    """Infer for some steps, and print the time of a step."""
    model = torch.compile(Recommender().to(DEVICE, DTYPE).eval())
    dense = torch.randn(BATCH, DENSE, device=DEVICE, dtype=DTYPE)
    embedded = torch.randn(BATCH, EMBEDDED // 16, HIDDEN[-1], device=DEVICE, dtype=DTYPE)
    with torch.inference_mode():
        model(dense, embedded)
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(STEPS):
                model(dense, embedded)
            if ON_GPU:
                torch.cuda.synchronize()
            print(f"step time: {(time.perf_counter() - start) / STEPS * 1e3:.4f} ms")


if __name__ == "__main__":
    main()
