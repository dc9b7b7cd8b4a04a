"""Candidates of architectures whose GPUs are not here: what our rules let pass compiles, and fits."""

import random
from pathlib import Path

import pytest
from compile_candidates import ARCHITECTURES, candidates, main, measure, passes, verdicts

from diode_lut.compile_check import Trial

_LARGE_AREA = 128 * 128  # blocks that take long to compile; ``tools/compile_candidates.py`` compiles them too


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_candidate_compiles_and_fits(arch: str) -> None:
    """Triton compiles it for its architecture, and it takes no more shared memory than there is."""
    trials = [Trial(arch, config, "bfloat16", "nt", 16) for config in candidates(arch, "bfloat16")]
    small = [each for each in trials if each.config.tiles.block_m * each.config.tiles.block_n <= _LARGE_AREA]
    trial = random.Random(arch).choice([each for each in small if passes(each)])
    found = set(verdicts(trial, measure(trial)))
    assert found >= {"kernels", "pass"}
    assert not found & {"failed", "too large"}


def test_a_file_of_results_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a file has is not compiled again, and is reported with what is added."""
    results = tmp_path / "results.jsonl"
    reports = []
    for sample in ("1", "1", "2"):
        monkeypatch.setattr(
            "sys.argv", ["compile_candidates.py", "--arch", "sm_80", "--sample", sample, "--out", str(results)]
        )
        main()
        reports.append((len(results.read_text().splitlines()), capsys.readouterr().out))
    first, again, more = reports
    assert again == first
    assert (first[0], more[0]) in ((1, 2), (1, 3))  # a larger sample may leave out what a smaller one has
