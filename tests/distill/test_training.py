"""Networks are trained several at a time, each in one thread."""

from threading import Barrier

import torch
from torch import Tensor

from diode_lut.distill.examples import Examples, Space, examples_of
from diode_lut.distill.training import Network, Scale, Training, TrainingPlan, train
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
