"""A file in which a command notes its progress. New content is sent as the checkpoint of the claim."""

from __future__ import annotations

import os

from dibs.base.errors import InvalidInput
from dibs.core.limits import CHECKPOINT_BYTES_MAX


class CheckpointFile:
    """`trouble` says why the file's content is not a valid checkpoint, if it is not."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.trouble: str | None = None
        self._sent = ""
        self._seen: tuple[int, int] | None = None

    def fill(self, checkpoint: str | None) -> None:
        """Write the last owner's checkpoint into the file, unless the file exists: a run in the same folder knows
        more."""
        if checkpoint is None:
            return
        self._sent = checkpoint
        try:
            number = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return
        except OSError as error:
            raise InvalidInput(
                f"--checkpoint-file {self.path} cannot be written ({error.strerror}). Use a file that you can write."
            ) from None
        with os.fdopen(number, "wb") as file:
            file.write(checkpoint.encode())

    def news(self) -> str | None:
        """The content, if it differs from what was sent last. Call `sent` after sending it."""
        try:
            with open(self.path, "rb") as file:
                facts = os.fstat(file.fileno())
                seen = (facts.st_mtime_ns, facts.st_size)
                if seen == self._seen:
                    return None
                content = file.read(CHECKPOINT_BYTES_MAX + 2)
        except OSError:  # it does not exist yet
            return None
        text = self._text(content.removesuffix(b"\n"))
        if text is None or text == self._sent:
            self._seen = seen
            return None
        return text

    def sent(self, text: str) -> None:
        self._sent = text

    def _text(self, content: bytes) -> str | None:
        if len(content) > CHECKPOINT_BYTES_MAX:
            self.trouble = f"it is longer than {CHECKPOINT_BYTES_MAX} bytes"
            return None
        try:
            text = content.decode()
        except UnicodeDecodeError:
            self.trouble = "it is not UTF-8 text"
            return None
        self.trouble = None
        return text
