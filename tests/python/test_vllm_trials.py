"""What the trials of vLLM conclude. The trials themselves are for `make test-vllm`."""

from __future__ import annotations

from pathlib import Path

import pytest

import vllm_trials

RATES = {"sagecomm": [9.0, 11.0, 30.0], "gloo": [10.0, 10.9, 10.0], "shm": [11.0, 10.0, 40.0]}


@pytest.mark.parametrize(("over", "rate"), [("gloo", 11.0), ("gloo", 12.0), ("shm", 11.1)])
def test_rates_that_are_too_low(over: str, rate: float) -> None:
    vllm_trials.compare(RATES)
    with pytest.raises(vllm_trials.TrialError, match=f"over sagecomm, {rate:.0f} over"):
        vllm_trials.compare({**RATES, over: [rate]})


def test_a_trial_without_the_kernel_has_not_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_: Path) -> None:
        vllm_trials.compare({**RATES, "shm": []})

    monkeypatch.setattr(vllm_trials.vllm_engine, "make_model", lambda _: None)
    monkeypatch.setitem(vllm_trials.TRIALS, "measure", measure)
    monkeypatch.setitem(vllm_trials.TRIALS, "kill", lambda _: None)
    assert vllm_trials.main(["measure", "kill"]) == 0
    assert "1 passed, 0 failed, 1 not measured" in capsys.readouterr().out
