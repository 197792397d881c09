"""Where the config text comes from, and whether it has changed. Compared by content: a Kubernetes ConfigMap
is swapped by a symbolic link, which a watch on the file itself does not see."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from proxy.config import Config, ConfigError
from proxy.config_load import load

MAX_CONFIG_BYTES = 4 * 1024 * 1024
_FILE_SECRET = re.compile(r"""["']file:([^"']+)["']""")


@dataclass(frozen=True, slots=True)
class Source:
    """A config file, or none; and what else the reading of it depends on."""

    path: Path | None
    environ: Mapping[str, str]
    embedded: bool
    """The embedded engine and its weights are installed."""

    @classmethod
    def named(cls, path: str | None, environ: Mapping[str, str], *, embedded: bool) -> Source:
        """The file given, else the one in CHATFUSE_CONFIG, else none."""
        name = path or environ.get("CHATFUSE_CONFIG") or None
        return cls(Path(name) if name else None, environ, embedded)

    def text(self) -> str:
        """Raises ConfigError when the file cannot be read."""
        if self.path is None:
            return ""
        try:
            raw = self.path.read_bytes()
            if len(raw) > MAX_CONFIG_BYTES:
                raise ConfigError([("", f"{self.path} has {len(raw)} bytes, more than {MAX_CONFIG_BYTES}")])
            return raw.decode()
        except OSError as error:
            raise ConfigError([("", f"{self.path} cannot be read: {error.strerror}")]) from None
        except UnicodeDecodeError:
            raise ConfigError([("", f"{self.path} is not UTF-8")]) from None

    def fingerprint(self, text: str) -> str:
        """Changes when the text does, or a file that one of its keys is read from: keys are rotated that way.

        Only digests are kept. A file that cannot be read counts as empty; reading the config tells of it.
        """
        digest = hashlib.sha256(text.encode())
        folder = self.path.parent if self.path is not None else Path()
        for name in _FILE_SECRET.findall(text):
            with suppress(OSError):
                digest.update(b"\0" + (folder / name).read_bytes())
        return digest.hexdigest()

    def parse(self, text: str) -> Config:
        """Raises ConfigError with every problem."""
        folder = self.path.parent if self.path is not None else None
        return load(text, self.environ, folder, embedded=self.embedded)
