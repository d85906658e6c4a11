"""Every error the client raises on purpose; each message is one sentence that names the fix."""


class SimClientError(Exception):
    """Base of the errors whose message is meant for the user, without a traceback."""


class ConfigError(SimClientError):
    """A flag or a file of the user's asks for something impossible."""


class ContractError(ConfigError):
    """The server announces something else than this evaluation needs."""


class PolicyError(SimClientError):
    """The policy server failed or gave an unusable reply; never an outcome of the policy."""


class SimError(SimClientError):
    """The simulator failed; never an outcome of the policy."""
