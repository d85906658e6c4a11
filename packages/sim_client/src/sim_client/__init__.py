"""Simulator client: seeded episodes against a policy server, with traces and results."""
