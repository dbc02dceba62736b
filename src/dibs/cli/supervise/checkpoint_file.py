"""A file in which a command notes how far it has come: what is new in it goes out as the checkpoint of the claim."""

from __future__ import annotations

import os

from dibs.core.limits import CHECKPOINT_BYTES_MAX
from dibs.errors import InvalidInput


class CheckpointFile:
    """`trouble` says why the file's content is no checkpoint, if so."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.trouble: str | None = None
        self._sent = ""
        self._seen: tuple[int, int] | None = None

    def fill(self, checkpoint: str | None) -> None:
        """Put what the last owner left into the file, unless there is one: whoever runs here again knows more."""
        if checkpoint is None:
            return
        self._sent = checkpoint
        try:
            number = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return
        except OSError as error:
            raise InvalidInput(
                f"--checkpoint-file {self.path} cannot be written ({error.strerror}). Name a file in a folder of yours."
            ) from None
        with os.fdopen(number, "wb") as file:
            file.write(checkpoint.encode())

    def news(self) -> str | None:
        """The content, if it is another than was sent last. Call `sent` when it was."""
        try:
            with open(self.path, "rb") as file:
                facts = os.fstat(file.fileno())
                seen = (facts.st_mtime_ns, facts.st_size)
                if seen == self._seen:
                    return None
                content = file.read(CHECKPOINT_BYTES_MAX + 2)
        except OSError:  # not there, or not yet
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
            self.trouble = f"it has more than the {CHECKPOINT_BYTES_MAX} bytes that a checkpoint may have"
            return None
        try:
            text = content.decode()
        except UnicodeDecodeError:
            self.trouble = "it is not UTF-8 text"
            return None
        self.trouble = None
        return text
