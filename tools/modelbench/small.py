"""Small models, of which most of a cold compile is the compiling of kernels: recommenders, fields in space, agents."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, softplus


def layers(*sizes: int) -> nn.ModuleList:
    """Linear layers one after the other."""
    return nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))


class MLP(nn.Module):
    """Linear layers with ReLU between them; the layers ``skips`` read the input again."""

    def __init__(
        self, inputs: int, sizes: Sequence[int], outputs: int, skips: Sequence[int] = (), *, smooth: bool = False
    ) -> None:
        super().__init__()
        widths = [inputs, *sizes]
        self.layers = nn.ModuleList(
            nn.Linear(before + (inputs if index in skips else 0), after)
            for index, (before, after) in enumerate(pairwise([*widths, outputs]))
        )
        self.skips, self.act = set(skips), (lambda x: softplus(x, beta=100.0)) if smooth else relu

    def forward(self, x: Tensor) -> Tensor:
        hidden = x
        for index, layer in enumerate(self.layers):
            hidden = layer(torch.cat((hidden, x), -1) if index in self.skips else hidden)
            if index + 1 < len(self.layers):
                hidden = self.act(hidden)
        return hidden


class DotsRecommender(nn.Module):
    """DLRM without its tables: an MLP of the dense features, dot products between all features, and another MLP."""

    def __init__(self, dense: int, fields: int, width: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.bottom = MLP(dense, bottom, width)
        self.top = MLP((fields + 1) * fields // 2 + width, top, 1)
        self.pairs: Tensor
        self.register_buffer("pairs", torch.tril_indices(fields + 1, fields + 1, -1))

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        features = relu(self.bottom(dense))
        stacked = torch.cat((features[:, None], embeddings), 1)
        dots = torch.bmm(stacked, stacked.mT)[:, self.pairs[0], self.pairs[1]]
        result: Tensor = self.top(torch.cat((features, dots), 1))
        return result


class AutoInt(nn.Module):
    """Self-attention between the features of a user, layer after layer, beside an MLP of all features."""

    def __init__(self, fields: int, width: int, heads: int, size: int, depth: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.heads = heads
        widths = [width, *[heads * size] * depth]
        self.projections = nn.ModuleList(
            nn.ModuleList(nn.Linear(before, after, bias=False) for _ in range(4)) for before, after in pairwise(widths)
        )
        self.head = nn.Linear(fields * heads * size, 1)
        self.mlp = MLP(fields * width, hidden, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        x = embeddings
        for projections in self.projections.children():
            q, k, v, kept = (each(x) for each in projections.children())
            q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, k, v))
            seen = torch.softmax(q @ k.mT, -1) @ v
            x = relu(seen.transpose(1, 2).flatten(2) + kept)
        result: Tensor = self.head(x.flatten(1)) + self.mlp(embeddings.flatten(1))
        return result


class CrossNetwork(nn.Module):
    """DCN v2: layers that multiply the input with a linear layer of the last, and an MLP behind them."""

    def __init__(self, width: int, depth: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.crosses = layers(*[width] * (depth + 1))
        self.mlp = MLP(width, hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        crossed = x
        for layer in self.crosses:
            crossed = x * layer(crossed) + crossed
        result: Tensor = self.mlp(crossed)
        return result


class Radiance(nn.Module):
    """The MLP of a radiance field: eight layers of a position, whose input is read again, and two of a direction."""

    def __init__(self, position: int, direction: int, width: int) -> None:
        super().__init__()
        self.trunk = MLP(position, [width] * 7, width, skips=(5,))
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.color = MLP(width + direction, [width // 2], 3)

    def forward(self, position: Tensor, direction: Tensor) -> Tensor:
        hidden = relu(self.trunk(position))
        color = torch.sigmoid(self.color(torch.cat((self.feature(hidden), direction), -1)))
        return torch.cat((color, self.density(hidden)), -1)


class ActorCritic(nn.Module):
    """Two MLPs of an observation: what to do, and what it is worth."""

    def __init__(self, observation: int, hidden: Sequence[int], actions: int) -> None:
        super().__init__()
        self.actor, self.critic = MLP(observation, hidden, actions), MLP(observation, hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((torch.tanh(self.actor(x)), self.critic(x)), -1)


class Towers(nn.Module):
    """Scores of items for users: the products of what two MLPs make of them."""

    def __init__(self, user: int, item: int, hidden: Sequence[int], width: int) -> None:
        super().__init__()
        self.user, self.item = MLP(user, hidden, width), MLP(item, hidden, width)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        scores: Tensor = self.user(users) @ self.item(items).t()
        return scores
