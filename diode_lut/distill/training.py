"""The network in torch, and its training: an ensemble as a teacher, then a student, and its confidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot, pad

from diode_lut.distill.examples import MAX_LOSS, Examples, Space, Target, draw_problems, examples_of
from diode_lut.model import kinds_of
from diode_lut.model.features import PROBLEM_FEATURES
from diode_lut.model.ranking import GOOD, MAX_LEAD, Calibration, Weights

HIDDEN = 96, 64  # number of neurons of the two hidden layers
LEARNED = 16  # number of learned features of each candidate, which describe its kernel beyond its tunables
_INITIAL_DEVIATION = 0.1  # standard deviation of the learned features before training
_CHUNK = 512  # number of problems scored at a time


class Scale(NamedTuple):
    """Mean and standard deviation of each feature: of the problem, config and joint features."""

    mean: tuple[Tensor, Tensor, Tensor]
    deviation: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, examples: Examples, configs: Tensor) -> Scale:
        """Return the scale to mean 0 and deviation 1. Constant features keep their deviation."""
        parts = examples.features, configs[examples.family][examples.applies], examples.joint[examples.applies]
        deviations = [part.std(0) for part in parts]
        return cls(
            tuple(part.mean(0) for part in parts),  # type: ignore[arg-type]
            tuple(torch.where(deviation > 1e-3, deviation, 1.0) for deviation in deviations),  # type: ignore[arg-type]
        )

    def apply(self, examples: Examples) -> Examples:
        """Return the scaled examples, the network's input."""
        (of_problem, _, of_joint), (problem, _, joint) = self.mean, self.deviation
        return examples._replace(
            features=(examples.features - of_problem) / problem, joint=(examples.joint - of_joint) / joint
        )


class Network(nn.Module):
    """A network with two hidden ReLU layers. The initial weights are drawn with a seed."""

    def __init__(self, scale: Scale, space: Space, seed: int) -> None:
        super().__init__()
        self.scale = scale
        self._configs: Tensor
        self._members: Tensor
        self.register_buffer("_configs", (space.configs - scale.mean[1]) / scale.deviation[1], persistent=False)
        members = one_hot(space.numbers, int(space.numbers.max()) + 1).to(torch.float32)
        self.register_buffer("_members", members, persistent=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.learned = nn.Parameter(_INITIAL_DEVIATION * torch.randn(members.shape[2], LEARNED))
            of_problem, of_config, of_joint = map(len, scale.mean)
            inputs = [of_problem, of_config + LEARNED, of_joint]
            first, second = HIDDEN
            whole = nn.Linear(sum(inputs), first)
            self.parts = nn.ParameterList(part.detach().clone() for part in torch.split(whole.weight, inputs, dim=1))
            self.first_bias = nn.Parameter(whole.bias.detach().clone())
            self.second, self.last = nn.Linear(first, second), nn.Linear(second, 1)

    def forward(self, examples: Examples) -> Tensor:
        """Return scores (problems x candidates) of scaled examples."""
        _, second = self.layers(examples)
        scores: Tensor = self.last(second)[..., 0]
        return scores

    def layers(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """Return activations of the first and the second layer, each problems x candidates x neurons."""
        of_problem, of_config, of_joint = self.parts
        of_families = torch.cat((self._configs, self._members @ self.learned), dim=2) @ of_config.T
        member = torch.stack([examples.family == number for number in range(len(of_families))], dim=1)
        member = member.to(of_families.dtype)
        fixed = (member @ of_families.flatten(1)).view(examples.size, *of_families.shape[1:])
        fixed = fixed + (examples.features @ of_problem.T + self.first_bias)[:, None]
        first = torch.relu(torch.baddbmm(fixed, examples.joint, of_joint.T.expand(examples.size, -1, -1)))
        return first, torch.relu(self.second(first))

    def weights(self, doubt: Tensor, doubt_bias: Tensor) -> Weights:
        """Return the weights for inference, with the scaling of features. ``doubt`` are weights of both layers."""
        (problem, config, joint), (of_problem, of_config, of_joint) = self.scale
        means = problem, pad(config, (0, LEARNED)), joint  # learned features are not scaled
        deviations = of_problem, pad(of_config, (0, LEARNED), value=1.0), of_joint
        scaled = [part / deviation for part, deviation in zip(self.parts, deviations, strict=True)]
        shift = sum(part @ mean for part, mean in zip(scaled, means, strict=True))
        own = scaled[0][:, :-1]  # on its own device, foreign is 0
        scaled[0] = pad(own, (0, len(PROBLEM_FEATURES) - own.shape[1]))  # features that it does not take
        arrays = (
            self.learned.T,
            *scaled,
            (self.first_bias - shift)[:, None],
            *(self.second.weight, self.second.bias[:, None], self.last.weight, self.last.bias[:, None]),
            *(doubt[None], doubt_bias[None]),
        )
        return Weights(*(each.detach().numpy().copy() for each in arrays))


def masked(values: Tensor, applies: Tensor, otherwise: float) -> Tensor:
    """Return ``values`` of the applicable candidates, and ``otherwise`` for the others."""
    return torch.where(applies, values, otherwise)


@torch.no_grad()
def answers(network: Network, examples: Examples) -> Tensor:
    """Return scores (problems x candidates), infinite for candidates that do not apply."""
    parts = [network(examples.take(rows)) for rows in _parts(examples)]
    return masked(torch.cat(parts), examples.applies, torch.inf)


@torch.no_grad()
def layers_of(network: Network, examples: Examples, choices: Tensor) -> Tensor:
    """Return activations of both layers for a choice for each problem, problems x neurons."""
    parts = []
    for rows in _parts(examples):
        layers = network.layers(examples.take(rows))
        parts.append(torch.cat([layer[torch.arange(len(rows)), choices[rows]] for layer in layers], dim=1))
    return torch.cat(parts)


def _parts(examples: Examples) -> Sequence[Tensor]:
    return torch.split(torch.arange(examples.size), _CHUNK)


def losses_of(network: Network, examples: Examples) -> Tensor:
    """Return the loss of the first choice on each problem."""
    choice = answers(network, examples).argmin(1, keepdim=True)
    return examples.losses.gather(1, choice)[:, 0]


def mean_regret(network: Network, examples: Examples) -> float:
    """Return the geometric mean of the first choices' times over the best times, minus 1."""
    return float(torch.expm1(losses_of(network, examples).mean()))


_BATCH = 64
_LEARNING_RATE, _WARM_UP, _WEIGHT_DECAY = 3e-3, 0.15, 0.01

_DECAY_LENGTH = 0.15  # decay length of an error's weight with the config's loss, in units of log time
_MIN_WEIGHT = 0.05  # minimum weight of an error
_TEMPERATURE = 0.02  # softmax temperature, in units of scores
_SQUARES_WEIGHT = 10.0  # weight of the scores' squared errors, relative to the expected regret of the choice


class TrainingPlan(NamedTuple):
    """The same ``seed`` gives the same network. ``epochs`` is the number of passes over the problems.

    ``device`` is ``cpu``, or ``cuda``, which trains ten times as fast.
    """

    seed: int = 0
    epochs: int = 100
    device: str = "cpu"


class Training(NamedTuple):
    """A network and its training. All examples of a batch are from the same of the ``lessons``.

    It learns from those examples of the first lesson that are in ``rows``, if there are any, and from all of others.
    The regret on ``test`` is recorded after each epoch.
    """

    network: Network
    lessons: list[Examples]
    plan: TrainingPlan
    test: Examples | None = None
    rows: Tensor | None = None


class Epoch(NamedTuple):
    """The mean training loss of an epoch, and the mean regret on the test problems, NaN without a test."""

    loss: float
    regret: float


@contextmanager
def one_thread() -> Iterator[int]:
    """Let torch use a single thread, because sums differ with more, and yield the number of threads before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def train(trainings: Sequence[Training], at_once: int) -> list[list[Epoch]]:
    """Train networks with the same lessons and as many epochs, and return the history of each.

    On a CPU each network is trained in a single thread, which is faster, and reproducible with any number of threads,
    ``at_once`` at a time. On a GPU all are trained in the same steps, whose kernels compute for all networks.
    """
    ended = Event()
    together = [trainings] if trainings[0].plan.device != "cpu" else [[training] for training in trainings]
    with ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            return [history for each in pool.map(lambda group: _train(group, ended), together) for history in each]
        finally:
            ended.set()  # after an error or Ctrl-C, other networks end after their current epoch


def _train(trainings: Sequence[Training], ended: Event) -> list[list[Epoch]]:
    """Train networks in the same steps. Their parameters are stacked: the first dimension is that of networks."""
    networks, plan = [training.network for training in trainings], trainings[0].plan
    tests = [training.test and training.test.to(plan.device) for training in trainings]
    lessons = [lesson.to(plan.device) for lesson in trainings[0].lessons]
    for network in networks:
        network.to(plan.device)
    parameters, buffers = stack_module_state(networks)
    optimizer = torch.optim.AdamW(parameters.values(), weight_decay=_WEIGHT_DECAY, fused=True)
    generators = [torch.Generator().manual_seed(training.plan.seed) for training in trainings]
    first = [torch.arange(lessons[0].size) if each.rows is None else each.rows for each in trainings]
    chosen = [first, *([torch.arange(lesson.size)] * len(trainings) for lesson in lessons[1:])]
    sizes = [min(map(len, rows)) for rows in chosen]  # in an epoch, all networks take as many steps
    batches = sum(-(-size // _BATCH) for size in sizes)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _LEARNING_RATE, total_steps=plan.epochs * batches, pct_start=_WARM_UP
    )

    def gradients(lesson: Examples, rows: Tensor) -> Tensor:
        def loss_of(*state_and_rows: Any) -> Tensor:
            *state, own = state_and_rows
            examples = lesson.take(own)
            return _loss(functional_call(networks[0], tuple(state), (examples,)), examples)

        optimizer.zero_grad(set_to_none=False)
        losses = vmap(loss_of)(parameters, buffers, rows)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        return losses.detach()

    graphs: dict[tuple[int, int], _Graph] = {}
    histories: list[list[Epoch]] = [[] for _ in trainings]
    while len(histories[0]) < plan.epochs and not ended.is_set():
        totals = torch.zeros(len(trainings), dtype=torch.float64, device=plan.device)
        shuffled = []
        for number, (rows, size) in enumerate(zip(chosen, sizes, strict=True)):
            both = zip(rows, generators, strict=True)
            orders = [own[torch.randperm(len(own), generator=generator)[:size]] for own, generator in both]
            shuffled += [(number, batch) for batch in torch.split(torch.stack(orders).to(plan.device), _BATCH, dim=1)]
        for place in torch.randperm(len(shuffled), generator=generators[0]).tolist():
            number, batch = shuffled[place]
            if plan.device == "cpu":
                totals += gradients(lessons[number], batch)
            else:
                key = number, batch.shape[1]
                if key not in graphs:
                    graphs[key] = _Graph(partial(gradients, lessons[number]), batch)
                totals += graphs[key](batch)
            optimizer.step()
            schedule.step()
        for number, (network, test) in enumerate(zip(networks, tests, strict=True)):
            with torch.no_grad():
                for name, parameter in network.named_parameters():
                    parameter.copy_(parameters[name][number])
            regret = np.nan if test is None else mean_regret(network, test)
            histories[number].append(Epoch(float(totals[number]) / batches, regret))
    for network in networks:
        network.to("cpu")
    return histories


def _loss(scores: Tensor, examples: Examples) -> Tensor:
    """Return the mean squared error of scores, up to an offset for each problem, plus the expected regret."""
    losses = examples.losses
    weight = (torch.exp(-losses / _DECAY_LENGTH) + _MIN_WEIGHT) * examples.known
    choice = torch.softmax(masked(-scores / _TEMPERATURE, examples.known, -torch.inf), dim=1)
    errors = scores - losses
    errors = errors - (errors * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
    errors = torch.where((losses >= MAX_LOSS) & (errors > 0), 0.0, errors)  # a slow config is never too slow
    squares = (errors**2 * weight).sum() / weight.sum()
    loss: Tensor = _SQUARES_WEIGHT * squares + (choice * losses).sum(1).mean()
    return loss


class _Graph:
    """A function of a batch's rows, captured in a CUDA graph: its many small kernels take longer to launch than to run.

    Its result is overwritten by the next call.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> None:
        self._rows = rows.clone()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function(self._rows)  # what the first call allocates must not be in the graph
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = function(self._rows)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the result for other rows, as many as before."""
        self._rows.copy_(rows)
        self._graph.replay()
        return self._result


MEMBERS = 6  # number of networks in the teacher


class Teacher(NamedTuple):
    """Trained networks. ``unseen`` has for each problem the number of the member not trained on its GEMM."""

    members: tuple[Network, ...]
    unseen: Tensor

    def teach(self, examples: Examples) -> Examples:
        """Return the examples with the members' mean expected losses."""
        scores = torch.stack([answers(member, examples) for member in self.members]).mean(0)
        losses = (scores - scores.amin(1, keepdim=True)).clamp(max=MAX_LOSS)
        return examples._replace(losses=losses, known=examples.applies)

    def complete(self, examples: Examples) -> Examples:
        """Return the examples with the expected losses of candidates whose loss is not known."""
        taught = self.teach(examples)
        return taught._replace(losses=torch.where(examples.known, examples.losses, taught.losses))

    def unseen_losses(self, examples: Examples) -> Tensor:
        """Return for each training problem the loss of the first choice of the member not trained on it."""
        losses = torch.empty(examples.size)
        for number, member in enumerate(self.members):
            rows = (self.unseen == number).nonzero()[:, 0]
            losses[rows] = losses_of(member, examples.take(rows))
        return losses


def train_teacher(
    examples: Examples, test: Examples | None, scale: Scale, space: Space, plan: TrainingPlan, at_once: int
) -> tuple[Teacher, list[Epoch]]:
    """Train a teacher, ``at_once`` members at a time, and return it with the history of its first member."""
    generator = torch.Generator().manual_seed(plan.seed)
    unseen = (torch.randperm(int(examples.gemm.max()) + 1, generator=generator) % MEMBERS)[examples.gemm]
    trainings = []
    for number in range(MEMBERS):
        own = plan._replace(seed=MEMBERS * plan.seed + number)
        network, seen = Network(scale, space, own.seed), (unseen != number).nonzero()[:, 0]
        trainings.append(Training(network, [examples], own, None if number else test, seen))
    history, *_ = train(trainings, at_once)
    return Teacher(tuple(training.network for training in trainings), unseen), history


_DRAWN_PER_MEASURED = 1  # number of drawn problems for each measured problem


class Trained(NamedTuple):
    """A student and its teacher, the scaled measured problems of their training, and their histories.

    The teacher tells the losses that were not measured. Its history is the history of its first member.
    """

    student: Network
    teacher: Teacher
    measured: Examples
    histories: dict[str, list[Epoch]]


def train_student(
    targets: Sequence[Target],
    test: Examples | None,
    space: Space,
    plan: TrainingPlan,
    report: Callable[[str], None] = lambda _: None,
) -> Trained:
    """Train a teacher and a student on the same problems. ``report`` gets a line of text for each stage.

    As many networks are trained at a time as torch has threads. Everything else runs in a single thread.
    """
    with one_thread() as at_once:
        problems = [target.problem for target in targets]
        measured = examples_of(problems, space, targets)
        scale = Scale.of(measured, space.configs)
        measured = scale.apply(measured)
        test = None if test is None else scale.apply(test)
        report(f"training the teacher: {MEMBERS} networks")
        teacher, teaching = train_teacher(measured, test, scale, space, plan, at_once)
        measured = teacher.complete(measured)
        drawn = draw_problems(problems, kinds_of(problems), _DRAWN_PER_MEASURED * len(problems), plan.seed)
        lessons = [measured]
        if drawn:  # empty if all sizes that may be drawn were measured
            lessons.append(teacher.teach(scale.apply(examples_of(drawn, space))))
        report("training the student")
        student = Network(scale, space, plan.seed)
        (learning,) = train([Training(student, lessons, plan, test)], at_once)
        return Trained(student, teacher, measured, {"teacher": teaching, "student": learning})


_STEPS = 100  # approximate number of steps of a calibration
_DIGITS = 4  # number of digits after the point of doubts and confidences
_Z_SCORE = 1.645  # standard deviations of a one-sided confidence interval of 95 %
_L2_WEIGHT = 1e-3  # weight of the L2 penalty in the regression's loss


class Regression(NamedTuple):
    """Doubts, as logarithms of odds: ``weights`` times the inputs for a choice, plus ``bias``."""

    weights: Tensor
    bias: Tensor

    @classmethod
    def of(cls, inputs: Tensor, bad: Tensor) -> Regression:
        """Fit the logistic regression of ``bad`` (0 or 1 for each problem) on ``inputs`` (problems x inputs)."""
        mean, deviation = inputs.mean(0), inputs.std(0).clamp(min=1e-3)
        scaled = (inputs - mean) / deviation
        weights, bias = torch.zeros(scaled.shape[1], requires_grad=True), torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.LBFGS((weights, bias), max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(scaled @ weights + bias, bad) + _L2_WEIGHT * weights.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(loss)  # type: ignore[no-untyped-call]
        weights, bias = weights.detach() / deviation, bias.detach()
        return cls(weights, bias - weights @ mean)

    def doubts(self, inputs: Tensor) -> Tensor:
        """Return the doubt for each row of inputs."""
        return inputs @ self.weights + self.bias


def calibrate(trained: Trained) -> tuple[Regression, Calibration, Calibration]:
    """Return the regression of doubts on a student's layers, and their confidences, also for fused epilogues.

    Doubts are fitted to all problems of its training, confidences to those of its own device.
    """
    # The inputs are both layers of the first choice, and its lead over the next. Infinity stands where there is none.
    scores = pad(answers(trained.student, trained.measured), (0, 1), value=torch.inf)
    best, order = scores.topk(2, dim=1, largest=False)
    lead = (best[:, 1:] - best[:, :1]).clamp(max=MAX_LEAD)
    inputs = torch.cat((layers_of(trained.student, trained.measured, order[:, 0]), lead), dim=1)
    good = trained.teacher.unseen_losses(trained.measured) <= np.log1p(GOOD)
    own, fused = ~trained.measured.foreign, trained.measured.fused
    doubts = torch.empty(len(good))
    for part in range(len(trained.teacher.members)):
        held_out = trained.teacher.unseen == part
        doubts[held_out] = Regression.of(inputs[~held_out], (~good[~held_out]).float()).doubts(inputs[held_out])
    weights, bias = Regression.of(inputs, (~good).float())
    groups, per_lead = (own & ~fused, own & fused), -float(weights[-1])
    alone, followed = (calibration_of(doubts[rows].numpy(), good[rows].numpy(), per_lead) for rows in groups)
    return Regression(weights[:-1], bias), alone, followed


def calibration_of(doubts: np.ndarray, good: np.ndarray, per_lead: float) -> Calibration:
    """Return for each doubt the lower bound of the share of good answers with at most this doubt, non-increasing.

    The bound is the lower end of Wilson's interval. Without any answers there are no doubts, and confidence is 0.
    """
    if not len(good):
        return Calibration(per_lead, (), ())
    doubts = doubts.round(_DIGITS)
    order = np.argsort(doubts, kind="stable")
    last = np.flatnonzero(np.diff(doubts[order], append=np.inf))  # the last place of each doubt
    share, width = np.cumsum(good[order])[last] / (last + 1), _Z_SCORE**2 / (last + 1)
    shares = (share + width / 2 - np.sqrt(width * (share * (1 - share) + width / 4))) / (1 + width)
    shares = np.maximum.accumulate(shares[::-1])[::-1]
    steps = np.unique(np.searchsorted(last, np.linspace(0, len(good) - 1, _STEPS).round()))
    confidences = shares[steps].round(_DIGITS)
    return Calibration(per_lead, tuple(doubts[order][last[steps]].tolist()), tuple(confidences.tolist()))
