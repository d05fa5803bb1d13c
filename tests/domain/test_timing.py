"""Rates are tokens by seconds, and unknown where there is nothing to divide."""

import msgspec
import pytest

from workbench.domain.timing import Timing

TIMING = Timing(prompt_tokens=100, evaluated_tokens=50, tokens=33, decoded_tokens=32, ttft_s=0.3, prefill_s=0.25,
                decode_s=2.0)


def test_prefill_counts_what_was_evaluated_and_decode_what_was_decoded() -> None:
    assert TIMING.prefill_tok_s == pytest.approx(200)
    assert TIMING.decode_tok_s == pytest.approx(16)


@pytest.mark.parametrize("nothing", [{"decoded_tokens": 0}, {"decode_s": 0.0}])
def test_no_decode_rate_without_tokens_or_time(nothing: dict[str, float]) -> None:
    assert msgspec.structs.replace(TIMING, **nothing).decode_tok_s is None


@pytest.mark.parametrize("nothing", [{"evaluated_tokens": 0}, {"prefill_s": 0.0}])
def test_no_prefill_rate_without_tokens_or_time(nothing: dict[str, float]) -> None:
    assert msgspec.structs.replace(TIMING, **nothing).prefill_tok_s is None
