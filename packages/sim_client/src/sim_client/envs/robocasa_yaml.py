"""RoboCasa's YAML files, parsed once.

A reset reads the same registries again for every fixture, 123 times in a scene, with PyYAML's
pure-Python parser. Parsing is a function of the text, so an equal text gets a copy of what the
first one gave; the files are still read every time.
"""

import copy
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class YamlCache:
    """What `yaml.safe_load` gave for the texts seen so far."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._parsed: dict[str, Any] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Answer `yaml.safe_load` from the cache for the length of the context."""
        yaml: Any = importlib.import_module("yaml")
        parse = yaml.safe_load

        def safe_load(stream: Any) -> Any:
            text = stream.read() if hasattr(stream, "read") else stream
            if text not in self._parsed:
                self._parsed[text] = parse(text)
            return copy.deepcopy(self._parsed[text])

        yaml.safe_load = safe_load
        try:
            yield
        finally:
            yaml.safe_load = parse
