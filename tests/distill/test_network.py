"""The network in torch and the one in NumPy compute the same."""

import numpy as np
import torch

from diode_lut.distill.examples import Space, examples_of
from diode_lut.distill.training import HIDDEN, Network, Scale, answers, layers_of
from diode_lut.hardware import architecture
from diode_lut.model.features import families, family_of
from diode_lut.model.ranking import Scorer
from tests.distill.synthetic import CONFIGS, problems
from tests.model.small import BATCHED, BMM, CANDIDATES, H200

PROBLEMS = [*problems(20), *(BMM._replace(b=b, m=m) for b in (2, 40) for m in (16, 64, 500))]


def test_scores_and_doubts_are_the_same_without_torch() -> None:
    """NumPy's scores and doubts equal torch's, for each candidate, with a batch and without."""
    both = families([*CONFIGS, *(each for each in CANDIDATES if each not in CONFIGS)], architecture("sm_90"))
    space = Space.of(*both, H200)
    assert BATCHED in both[1].configs
    examples = examples_of(PROBLEMS, space)
    scale = Scale.of(examples, space.configs)
    network, scaled = Network(scale, space, 1), scale.apply(examples)
    generator = torch.Generator().manual_seed(1)
    doubt, bias = torch.randn(sum(HIDDEN), generator=generator), torch.randn(1, generator=generator)
    scorers = [Scorer(network.weights(doubt, bias), family) for family in both]
    scores = answers(network, scaled).numpy()
    for row, problem in enumerate(PROBLEMS):
        family = both[family_of(problem)]
        found, doubts = scorers[family_of(problem)].scores(problem, H200.sm_count)
        applies = np.flatnonzero(family.applicable(problem))
        assert np.flatnonzero(np.isfinite(scores[row])).tolist() == applies.tolist()
        np.testing.assert_allclose(found[applies], scores[row][applies], atol=1e-4)
        alone = scaled.take(torch.tensor([row]))
        expected = [layers_of(network, alone, torch.tensor([place])) @ doubt + bias for place in applies]
        np.testing.assert_allclose(doubts[applies], torch.cat(expected).numpy(), atol=1e-3)
