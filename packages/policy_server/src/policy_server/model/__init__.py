"""pi0.5 in flax nnx: vision tower, two Gemma experts, flow-matching sampler."""
