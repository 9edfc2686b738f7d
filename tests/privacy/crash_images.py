"""What a power failure can leave: from the calls that a program made, every disk that may follow.

A write is on the disk for certain once its file was synced, a name once its folder was. Before that it
may be there, or not, or (a write) in part.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

Event = (
    tuple  # ("write", file, at, bytes) ("cut", file, length) ("sync", path) ("name", from or None, to) ...
)


class Recorder:
    """Notes what is done to files below a folder, in order."""

    def __init__(self, monkeypatch, root: Path) -> None:
        self.events: list[Event] = []
        self._root = root
        for name in ("open", "pwrite", "ftruncate", "fsync", "replace"):
            monkeypatch.setattr(os, name, self._noting(name, getattr(os, name)))

    def _noting(self, name, really):
        def call(*args, **more):
            result = really(*args, **more)
            self._note(name, args)
            return result

        return call

    def _note(self, name, args) -> None:
        def of(descriptor):
            return os.path.relpath(Path(f"/proc/self/fd/{descriptor}").readlink(), self._root)

        if name == "open":
            if args[1] & os.O_CREAT:
                self.events.append(("new", os.path.relpath(args[0], self._root)))
        elif name == "replace":
            self.events.append(("rename", *(os.path.relpath(path, self._root) for path in args)))
        elif name == "pwrite":
            self.events.append(("write", of(args[0]), args[2], args[1]))
        elif name == "ftruncate":
            self.events.append(("cut", of(args[0]), args[1]))
        else:
            self.events.append(("sync", of(args[0])))


class Disk:
    """Contents by number, as the system sees them and as they are for certain; names likewise."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.certain: list[bytes] = []
        self.names: list[dict[str, int]] = [{}]  # for certain, and after each change that is not

    def do(self, event: Event) -> None:
        kind, path, *rest = event
        names = self.names[-1]
        if kind == "new":
            self.names.append({**names, path: len(self.seen)})
            self.seen.append(b"")
            self.certain.append(b"")
        elif kind == "rename":
            kept = {name: number for name, number in names.items() if name != path}
            self.names.append({**kept, rest[0]: names[path]})
        elif kind == "write":
            content = self.seen[names[path]]
            self.seen[names[path]] = content[: rest[0]] + rest[1] + content[rest[0] + len(rest[1]) :]
        elif kind == "cut":
            self.seen[names[path]] = self.seen[names[path]][: rest[0]]
        elif kind == "sync" and path in names:
            self.certain[names[path]] = self.seen[names[path]]
        elif kind == "sync":
            self._sync_folder(path)

    def _sync_folder(self, folder: str) -> None:
        """Only the names in this folder become certain; those in others may still be lost."""
        inside = [name for name in self.names[-1] if os.path.normpath(Path(name).parent) == folder]
        settled = {name: self.names[-1][name] for name in inside}
        for i, names in enumerate(self.names):
            others = {k: v for k, v in names.items() if os.path.normpath(Path(k).parent) != folder}
            self.names[i] = {**others, **settled}
        unique = [self.names[0]]
        unique += [names for names in self.names[1:] if names != unique[-1]]
        self.names = unique

    def images(self) -> Iterator[dict[str, bytes]]:
        for names in self.names:
            found = sorted(names)
            choices = [self._contents(names[name]) for name in found]
            for contents in itertools.product(*choices):
                yield dict(zip(found, contents, strict=True))

    def _contents(self, number: int) -> list[bytes]:
        seen, certain = self.seen[number], self.certain[number]
        if seen == certain:
            return [seen]
        half = (len(seen) + len(certain)) // 2
        torn = max(seen, certain, key=len)[:half]
        return [certain, seen, torn, torn + bytes(max(len(seen), len(certain)) - half)]
