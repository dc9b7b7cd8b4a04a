"""The teacher: per problem, one member is not trained on it."""

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from diode_lut.dataset import read_dataset
from diode_lut.distill.examples import MAX_LOSS, Examples, Space, choose, examples_of, targets_of
from diode_lut.distill.training import MEMBERS, Scale, Teacher, TrainingPlan, answers, losses_of, train_teacher
from diode_lut.hardware import architecture
from diode_lut.model.features import families
from tests.distill.synthetic import write
from tests.model.small import H200


@pytest.fixture(scope="module")
def space_and_examples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Space, Examples]:
    targets = targets_of(read_dataset(write(tmp_path_factory.mktemp("teacher") / "x.msgpack", 100)))
    space = Space.of(*families(choose(targets), architecture(H200.arch)), H200)
    return space, examples_of([target.problem for target in targets], space, targets)


def trained(space: Space, examples: Examples) -> Teacher:
    scale = Scale.of(examples, space.configs)
    teacher, _ = train_teacher(scale.apply(examples), None, scale, space, TrainingPlan(epochs=2), 2)
    return teacher


def test_a_member_learns_nothing_from_what_it_has_not_seen(space_and_examples: tuple[Space, Examples]) -> None:
    """Other times of the problems that one member is not trained on change all other members, but not that one."""
    space, examples = space_and_examples
    teacher = trained(space, examples)
    assert sorted(set(teacher.unseen.tolist())) == list(range(MEMBERS))
    others = torch.where((teacher.unseen == 2)[:, None], examples.losses.flip(1), examples.losses)
    again = trained(space, examples._replace(losses=others))
    same = [
        torch.equal(parameters_to_vector(one.parameters()), parameters_to_vector(other.parameters()))
        for one, other in zip(teacher.members, again.members, strict=True)
    ]
    assert same == [number == 2 for number in range(MEMBERS)]


def test_a_member_has_not_seen_a_gemm_with_any_epilogue(space_and_examples: tuple[Space, Examples]) -> None:
    """Problems that differ in their epilogues alone are unseen by the same member."""
    space, examples = space_and_examples
    teacher = trained(space, examples._replace(gemm=torch.arange(examples.size) // 4))
    for number in range(examples.size // 4):
        assert len(set(teacher.unseen[4 * number : 4 * number + 4].tolist())) == 1
    assert sorted(set(teacher.unseen.tolist())) == list(range(MEMBERS))


def test_a_teacher_expects_what_its_members_do_on_average(space_and_examples: tuple[Space, Examples]) -> None:
    """The teacher's losses are the members' mean scores over the best, capped at MAX_LOSS."""
    space, examples = space_and_examples
    teacher = trained(space, examples)
    scaled = teacher.members[0].scale.apply(examples)
    scores = sum(answers(member, scaled) for member in teacher.members) / MEMBERS
    best = scores.min(1, keepdim=True).values
    assert torch.allclose(teacher.teach(scaled).losses, torch.clamp(scores - best, max=MAX_LOSS), atol=1e-5)


def test_unseen_losses_are_of_that_member(space_and_examples: tuple[Space, Examples]) -> None:
    """A problem's unseen loss is that of the first choice of the member that was not trained on it."""
    space, examples = space_and_examples
    teacher = trained(space, examples)
    scaled = teacher.members[0].scale.apply(examples)
    losses = teacher.unseen_losses(scaled)
    every = torch.stack([losses_of(member, scaled) for member in teacher.members])
    assert torch.equal(losses, every[teacher.unseen, torch.arange(examples.size)])
    assert not torch.equal(losses, every[0])


def test_a_teacher_tells_losses_that_were_not_measured(space_and_examples: tuple[Space, Examples]) -> None:
    """A candidate left out of a sweep gets the loss that the teacher expects; measured losses stay."""
    space, examples = space_and_examples
    teacher = trained(space, examples)
    scaled = teacher.members[0].scale.apply(examples)
    unknown = scaled.applies & (torch.arange(scaled.applies.shape[1]) % 2 == 0)
    complete = teacher.complete(scaled._replace(known=scaled.applies & ~unknown))
    expected = torch.where(unknown, teacher.teach(scaled).losses, scaled.losses)
    torch.testing.assert_close(complete.losses[scaled.applies], expected[scaled.applies])
    assert torch.equal(complete.known, scaled.applies)
