"""A stand-in profile for a model and accelerator that nobody has measured yet."""

from qlm.rct_estimator.profile import NUMBERS, Coefficients, Profile, Source, SourceKind


def unmeasured_profile(model: str, accelerator: str, *, context_tokens: int) -> Profile:
    """Guess a profile in the range of a 7B model on a data-centre GPU; every number says it is a guess.

    Plans stay sensible with it (longer work takes longer, swaps cost); their times do not. `qlm doctor`
    names the models that are served with a guess.
    """
    source = Source(SourceKind.DERIVED, "a guess: this model was not measured on this accelerator")
    return Profile(
        model=model,
        accelerator=accelerator,
        gpus=1,
        prefill=Coefficients(alpha=0.08, beta=0.0, gamma=0.0, delta=15.0),
        decode=Coefficients(alpha=0.00025, beta=0.07, gamma=0.0, delta=12.0),
        kv_bytes_per_token=131072,
        block_tokens=16,
        kv_tokens=max(40_000, context_tokens),
        seqs_max=64,
        context_tokens=context_tokens,
        weights_bytes=15_000_000_000,
        accelerator_memory_bytes=24_000_000_000,
        swap_warm_s=2.0,
        swap_reload_s=10.0,
        swap_cold_s=40.0,
        unload_s=1.0,
        host_bandwidth_bytes_per_s=20_000_000_000.0,
        sources={name: source for name in ("prefill_ms", "decode_ms", *NUMBERS)},
    )
