"""Training on a real GPU."""

from pathlib import Path

import pytest
from torch.nn.utils import parameters_to_vector

from diode_lut.dataset import read_dataset
from diode_lut.distill.examples import Space, choose, targets_of
from diode_lut.distill.training import TrainingPlan, train_student
from diode_lut.hardware import architecture
from diode_lut.model.features import families
from tests.distill.synthetic import write
from tests.model.small import H200

pytestmark = pytest.mark.gpu


def test_a_network_trained_on_a_gpu_is_as_good(tmp_path: Path) -> None:
    """The losses of training end near those on the CPU, and a second training gives the same network."""
    targets = targets_of(read_dataset(write(tmp_path / "x.msgpack", 100)))
    space = Space.of(*families(choose(targets), architecture(H200.arch)), H200)
    cpu, cuda, again = (
        train_student(targets, None, space, TrainingPlan(epochs=20, device=device))
        for device in ("cpu", "cuda", "cuda")
    )
    for name in ("teacher", "student"):
        losses = [trained.histories[name][-1].loss for trained in (cpu, cuda)]
        assert losses[1] == pytest.approx(losses[0], rel=0.1)
        assert losses[1] < 0.5 * cuda.histories[name][0].loss
    first, second = (parameters_to_vector(each.student.parameters()) for each in (cuda, again))
    assert first.tolist() == second.tolist()
