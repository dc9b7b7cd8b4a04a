"""The network of ``model.network`` in torch, for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from diode_lut.distill.examples import Examples, Space
from diode_lut.model.features import PROBLEM_FEATURES, Floats
from diode_lut.model.network import Weights

HIDDEN = 96, 64
"""Number of neurons of the two hidden layers."""

LEARNED = 16
"""Number of learned features per candidate, which describe its kernel beyond its tunables."""

_INITIAL_DEVIATION = 0.1
"""Standard deviation of the learned features before training."""

_CHUNK = 512
"""Number of problems that are scored at a time."""


class Scale(NamedTuple):
    """Mean and standard deviation of each feature: of the problem, config and joint features."""

    mean: tuple[Tensor, Tensor, Tensor]
    deviation: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, examples: Examples, configs: Tensor) -> Scale:
        """The scale that brings these examples to mean 0 and deviation 1; constant features keep their deviation."""
        parts = examples.features, configs[examples.family][examples.applies], examples.joint[examples.applies]
        deviations = [part.std(0) for part in parts]
        return cls(
            tuple(part.mean(0) for part in parts),  # type: ignore[arg-type]
            tuple(torch.where(deviation > 1e-3, deviation, 1.0) for deviation in deviations),  # type: ignore[arg-type]
        )

    def widened(self, count: int) -> Scale:
        """The scale for configs with ``count`` more features, which are not scaled."""
        (problem, config, joint), (of_problem, of_config, of_joint) = self
        return Scale(
            (problem, torch.cat((config, torch.zeros(count))), joint),
            (of_problem, torch.cat((of_config, torch.ones(count))), of_joint),
        )

    def apply(self, examples: Examples) -> Examples:
        """The scaled examples, which are the network's input."""
        (of_problem, _, of_joint), (problem, _, joint) = self.mean, self.deviation
        return examples._replace(
            features=(examples.features - of_problem) / problem, joint=(examples.joint - of_joint) / joint
        )

    def apply_to(self, configs: Tensor) -> Tensor:
        """The scaled features of configs."""
        (_, mean, _), (_, deviation, _) = self.mean, self.deviation
        return (configs - mean) / deviation


class Network(nn.Module):
    """Two hidden ReLU layers; the initial weights are drawn with a seed."""

    def __init__(self, scale: Scale, space: Space, seed: int) -> None:
        super().__init__()
        self.scale = scale
        self._configs, self._numbers = scale.apply_to(space.configs), space.numbers
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._draw(*HIDDEN)

    def _draw(self, first: int, second: int) -> None:
        """Draw the initial weights."""
        self.learned = nn.Parameter(_INITIAL_DEVIATION * torch.randn(int(self._numbers.max()) + 1, LEARNED))
        of_problem, of_config, of_joint = map(len, self.scale.mean)
        inputs = [of_problem, of_config + LEARNED, of_joint]
        whole = nn.Linear(sum(inputs), first)
        self.parts = nn.ParameterList(part.detach().clone() for part in torch.split(whole.weight, inputs, dim=1))
        self.first_bias = nn.Parameter(whole.bias.detach().clone())
        self.second, self.last = nn.Linear(first, second), nn.Linear(second, 1)

    def forward(self, examples: Examples) -> Tensor:
        """Scores (problems x candidates) of scaled examples."""
        _, second = self.layers(examples)
        scores: Tensor = self.last(second)[..., 0]
        return scores

    def layers(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """Activations of the first and the second layer, each problems x candidates x neurons."""
        of_problem, of_config, of_joint = self.parts
        of_families = torch.cat((self._configs, self.learned[self._numbers]), dim=2) @ of_config.T
        member = one_hot(examples.family, len(of_families)).to(of_families.dtype)
        fixed = (member @ of_families.flatten(1)).view(examples.size, *of_families.shape[1:])
        fixed = fixed + (examples.features @ of_problem.T + self.first_bias)[:, None]
        first = torch.relu(torch.baddbmm(fixed, examples.joint, of_joint.T.expand(examples.size, -1, -1)))
        return first, torch.relu(self.second(first))

    def weights(self, doubt: Tensor, doubt_bias: Tensor) -> Weights:
        """The weights for inference, with the scaling of features included; ``doubt`` are those of both layers."""
        scale = self.scale.widened(LEARNED)
        scaled = [part / deviation for part, deviation in zip(self.parts, scale.deviation, strict=True)]
        shift = sum(part @ mean for part, mean in zip(scaled, scale.mean, strict=True))
        scaled[0] = pad(scaled[0], (0, len(PROBLEM_FEATURES) - scaled[0].shape[1]))  # those that it does not take
        arrays = (
            self.learned.T,
            *scaled,
            (self.first_bias - shift)[:, None],
            *(self.second.weight, self.second.bias[:, None], self.last.weight, self.last.bias[:, None]),
            *(doubt[None], doubt_bias[None]),
        )
        return Weights(*(_array(each) for each in arrays))


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().numpy().copy()


def masked(values: Tensor, applies: Tensor, otherwise: float) -> Tensor:
    """``values`` of the applicable candidates, ``otherwise`` for the others."""
    return torch.where(applies, values, otherwise)


@torch.no_grad()
def answers(network: Network, examples: Examples) -> Tensor:
    """Scores (problems x candidates); infinite for candidates that do not apply."""
    parts = [network(examples.take(rows)) for rows in _parts(examples)]
    return masked(torch.cat(parts), examples.applies, torch.inf)


@torch.no_grad()
def layers_of(network: Network, examples: Examples, choices: Tensor) -> Tensor:
    """Activations of both layers for one choice per problem, problems x neurons."""
    parts = []
    for rows in _parts(examples):
        layers = network.layers(examples.take(rows))
        parts.append(torch.cat([layer[torch.arange(len(rows)), choices[rows]] for layer in layers], dim=1))
    return torch.cat(parts)


def _parts(examples: Examples) -> Sequence[Tensor]:
    return torch.split(torch.arange(examples.size), _CHUNK)


def losses_of(network: Network, examples: Examples) -> Tensor:
    """The loss of the first choice on each problem."""
    choice = answers(network, examples).argmin(1, keepdim=True)
    return examples.losses.gather(1, choice)[:, 0]


def mean_regret(network: Network, examples: Examples) -> float:
    """Geometric mean of the first choices' times over the best times, minus one."""
    return float(torch.expm1(losses_of(network, examples).mean()))
