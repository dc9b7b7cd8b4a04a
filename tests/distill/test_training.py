"""Networks are trained several at a time: on a CPU each in one thread, on a GPU in the same steps."""

from threading import Barrier, Event

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from diode_lut.distill.examples import Examples, Space, examples_of
from diode_lut.distill.training import Network, Scale, Training, TrainingPlan, _train, train
from diode_lut.hardware import architecture
from diode_lut.model.features import families
from diode_lut.templates.config import ATEN
from tests.distill.synthetic import CONFIGS, problems
from tests.model.small import H200


class Meeting(Network):
    """A network that waits in each forward pass for another one."""

    meeting: Barrier
    threads = 0

    def forward(self, examples: Examples) -> Tensor:
        self.meeting.wait(300)
        self.threads = torch.get_num_threads()
        return super().forward(examples)


def test_networks_are_trained_at_the_same_time() -> None:
    """Two networks that wait for each other are trained to the end, each in one thread of torch."""
    space = Space.of(*families([*CONFIGS, ATEN], architecture(H200.arch)), H200)
    examples = examples_of(problems(20), space)
    scale = Scale.of(examples, space.configs)
    networks, meeting = [Meeting(scale, space, seed) for seed in (1, 2)], Barrier(2)
    for network in networks:
        network.meeting = meeting
    histories = train([Training(each, [scale.apply(examples)], TrainingPlan(epochs=2)) for each in networks], 2)
    assert [len(history) for history in histories] == [2, 2]
    assert [network.threads for network in networks] == [1, 1]


def test_networks_learn_in_the_same_steps_as_alone() -> None:
    """Networks with other weights at first and other examples learn in an epoch what each learns alone."""
    space = Space.of(*families([*CONFIGS, ATEN], architecture(H200.arch)), H200)
    examples = examples_of(problems(100), space)
    generator = torch.Generator().manual_seed(1)
    examples = examples._replace(losses=torch.rand(examples.losses.shape, generator=generator) * examples.applies)
    scale = Scale.of(examples, space.configs)
    lessons = [scale.apply(examples), scale.apply(examples).take(torch.arange(30))]

    def trainings() -> list[Training]:
        seen = torch.arange(0, 80), torch.arange(20, 100)
        networks = [Network(scale, space, seed) for seed in range(2)]
        pairs = zip(networks, seen, strict=True)
        return [Training(network, lessons, TrainingPlan(epochs=1), lessons[1], rows) for network, rows in pairs]

    together, alone = trainings(), trainings()
    histories = _train(together, Event())
    for one, other, history in zip(together, alone, histories, strict=True):
        (own,) = _train([other], Event())
        first, second = (parameters_to_vector(each.network.parameters()) for each in (one, other))
        assert (first - second).abs().mean() < 1e-3  # rounded otherwise
        assert torch.allclose(torch.tensor(history), torch.tensor(own), rtol=0.01)
