"""The arithmetic of weights and KV cache."""

from service.launch.memory import compute_kv_bytes_per_token, judge_device_memory
from service.launch.profile import KvDtype
from service.launch.profiles import M31_FOOTPRINT, Overrides, apply_overrides, build_m31_flash_profile

M31 = build_m31_flash_profile()
B200_BYTES = 183_359 * 2**20


def test_bytes_per_token_by_hand() -> None:
    # 60 layers * (2 * 1 head * 128 numbers * 0.5625 bytes + 128 numbers of the indexer * 2 bytes)
    assert compute_kv_bytes_per_token(M31_FOOTPRINT, 4, KvDtype.NVFP4) == 60 * (256 * 0.5625 + 256)
    assert compute_kv_bytes_per_token(M31_FOOTPRINT, 2, KvDtype.FP8) == 60 * (512 + 256)


def test_more_devices_than_heads_do_not_split_a_head() -> None:
    four, eight = (compute_kv_bytes_per_token(M31_FOOTPRINT, size, KvDtype.NVFP4) for size in (4, 8))
    assert four == eight


def test_four_b200_carry_the_full_context() -> None:
    verdict = judge_device_memory(M31, M31_FOOTPRINT, B200_BYTES)
    assert verdict.fits
    assert verdict.kv_tokens > 1_048_576
    assert "1,048,576 asked" in verdict.arithmetic


def test_a_small_device_carries_less_and_says_how_much() -> None:
    small = judge_device_memory(M31, M31_FOOTPRINT, 96e9)
    assert not small.fits
    assert 0 < small.kv_tokens < 1_048_576
    shorter = apply_overrides(M31, Overrides(context_tokens=small.kv_tokens))
    assert judge_device_memory(shorter, M31_FOOTPRINT, 96e9).fits


def test_weights_alone_may_not_fit() -> None:
    assert judge_device_memory(M31, M31_FOOTPRINT, 48e9).kv_tokens == 0
