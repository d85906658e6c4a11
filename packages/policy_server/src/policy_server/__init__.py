"""JAX policy server for pi0.5 checkpoints, speaking the websocket protocol of openpi."""
