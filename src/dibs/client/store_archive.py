"""Moving a store, for the people who look after it: `export`, `import`, `thaw`, `backup`, `restore`.

One of the few client modules that may import stores and the engine. Everything here raises what the store raises.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import contextmanager, suppress
from shutil import copyfileobj

from dibs.base.errors import InvalidInput, StoreFull, Unavailable
from dibs.base.files import to_disk
from dibs.core.commands import Thaw
from dibs.core.upkeep_outcomes import Frozen, Thawed
from dibs.engine.archive.export import export
from dibs.engine.archive.intake import intake
from dibs.engine.coordinator import Coordinator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO, TextIO

    from dibs.stores.port import Store

    Document = dict[str, Any]

PRIVATE = 0o600


def export_to_stream(store: Store, stream: TextIO, *, freeze: bool) -> Document:
    """Write the archive there. A new file is made readable for its owner alone first: it holds lease ids."""
    _keep_private(stream)
    with _written("The archive"):
        exported = export(store, stream.write, freeze=freeze)
        stream.flush()
    return exported.dump()


def export_to_file(store: Store, path: str, *, freeze: bool) -> Document:
    """Write the archive into a new file, which is there when it is complete. One that is there already stays."""
    with new_file(path) as draft, _written(path), open(draft, "w", encoding="ascii") as file:
        exported = export(store, file.write, freeze=freeze)
        file.flush()
        to_disk(file.fileno())
    return exported.dump()


def import_from(store: Store, source: BinaryIO, *, adds: bool) -> Document:
    """Bring in the archive that `source` gives. It is read twice: a pipe is written to a temporary file first."""
    if source.seekable():
        return intake(store, source, adds=adds).dump()
    with tempfile.TemporaryFile(prefix="dibs-import-") as spool:
        with _written("The temporary copy of what is imported"):
            copyfileobj(source, spool, 1 << 20)
            spool.flush()
        return intake(store, spool, adds=adds).dump()


def thaw(store: Store) -> Document:
    """Let a frozen store be used again."""
    outcome = Coordinator(store).one(Thaw(id=None))
    if isinstance(outcome, Frozen):
        raise InvalidInput("An import into this store is not complete. Repeat the import until it is.")
    return {"was_frozen": isinstance(outcome, Thawed) and outcome.was_frozen}


@contextmanager
def new_file(path: str) -> Iterator[str]:
    """A draft beside `path`, for its owner alone. It is put in place when the block ends well, if nothing is there."""
    if os.path.lexists(path):
        raise InvalidInput(f"{path} is there already. Name another file, or remove it first.")
    folder, name = os.path.split(os.path.abspath(path))
    try:
        handle, draft = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    except OSError as error:
        raise Unavailable(f"{path} cannot be made: {error.strerror}.") from None
    os.close(handle)
    try:
        yield draft
        _put_in_place(draft, path)
        sync_folder(folder)
    except FileExistsError:
        raise InvalidInput(f"{path} is there already. Name another file, or remove it first.") from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _put_in_place(draft: str, path: str) -> None:
    """Give the draft its name, unless somebody else has made a file there meanwhile, which a rename would replace."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links, such as that of a memory stick
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE))
        os.rename(draft, path)


def sync_folder(folder: str) -> None:
    """Put the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        to_disk(handle)
    finally:
        os.close(handle)


@contextmanager
def _written(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFull(
            f"{what} could not be written ({error.strerror}). It is not complete; do not use it."
        ) from None


def _keep_private(stream: TextIO) -> None:
    try:
        handle = stream.fileno()
        file = os.fstat(handle)
        if stat.S_ISREG(file.st_mode) and not file.st_size:
            os.fchmod(handle, PRIVATE)
    except (OSError, ValueError):
        pass  # not a file, or not ours
