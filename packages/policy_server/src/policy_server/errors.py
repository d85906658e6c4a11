"""Every error the server raises on purpose; each message is one sentence that names the fix."""


class PolicyServerError(Exception):
    """Base of the errors whose message is meant for the user, without a traceback."""


class ConfigError(PolicyServerError):
    """A flag, the table of arms or another file of the user's asks for something impossible."""


class CheckpointError(ConfigError):
    """A checkpoint is missing, damaged or not the model that was asked for."""


class NormStatsError(ConfigError):
    """Norm stats are missing, malformed or do not belong to the arm."""


class DatasetError(ConfigError):
    """A dataset is missing, damaged, or does not say what its numbers are."""


class TokenizerError(ConfigError):
    """The SentencePiece model is missing or not the expected file."""


class RequestError(PolicyServerError):
    """One request is wrong; the sender is told so and the connection lives on."""
