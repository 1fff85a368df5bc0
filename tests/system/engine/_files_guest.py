"""Runs in a sandbox: does to its files what each line says, and tells how all of them look.

A line is JSON: a list of operations, or "look". Below `TOP` only. What the kernel refuses is left out: the
operations are drawn at random.
"""

import contextlib
import hashlib
import json
import mmap
import os
import socket
import stat
import sys
import threading

TOP = "/home"


def place(name):
    return f"{TOP}/{name}"


def write(name, at, data):
    fd = os.open(place(name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    os.pwrite(fd, data.encode(), at)
    os.close(fd)


def fill(name, size):
    """A file of `size` bytes that are all different from those before."""
    with open(place(name), "wb") as file:
        file.write(os.urandom(size))


def mapped(name, at, data):
    """Change a file by memory whose page was read before: nothing dates that."""
    fd = os.open(place(name), os.O_RDWR | os.O_NOFOLLOW)
    try:
        area = mmap.mmap(fd, 0)
    finally:
        os.close(fd)
    at %= len(area)
    before = area[at]
    area[at] = ord(data[0]) if before != ord(data[0]) else 0
    area.close()


def node(name):
    server = socket.socket(socket.AF_UNIX)
    server.bind(place(name))
    server.close()


def remove(name):
    """With all that is in it, and no directory open meanwhile: no fork could carry that."""
    if os.path.isdir(place(name)) and not os.path.islink(place(name)):
        for one in os.listdir(place(name)):
            remove(f"{name}/{one}")
        os.rmdir(place(name))
    else:
        os.unlink(place(name))


def times(name, accessed, modified):
    os.utime(place(name), ns=(accessed, modified), follow_symlinks=False)


def content(name):
    """Of a regular file: a fifo would wait for somebody to write."""
    with open(os.open(place(name), os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        return file.read()


def again(name):
    """Replace it by another of the same size and times."""
    before, data = os.lstat(place(name)), content(name)
    os.unlink(place(name))
    with open(place(name), "wb") as file:
        file.write(data[::-1])
    os.utime(place(name), ns=(before.st_atime_ns, before.st_mtime_ns))


DOES = {
    "write": write,
    "fill": fill,
    "mapped": mapped,
    "truncate": lambda name, size: os.truncate(place(name), size),
    "make_dir": lambda name: os.mkdir(place(name)),
    "remove": remove,
    "rename": lambda name, to: os.rename(place(name), place(to)),
    "link": lambda name, to: os.link(place(name), place(to), follow_symlinks=False),
    "symlink": lambda name, text: os.symlink(text, place(name)),
    "fifo": lambda name: os.mkfifo(place(name)),
    "socket": node,
    "mode": lambda name, mode: os.chmod(place(name), mode),
    "times": times,
    "attribute": lambda name, text: os.setxattr(place(name), "user.colour", text.encode()),
    "no_attribute": lambda name: os.removexattr(place(name), "user.colour"),
    "touched": content,
    "again": again,
}


def extents(fd, size):
    """Where it has data."""
    found, at = [], 0
    while at < size:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(fd, data, os.SEEK_HOLE)
        found.append((data, at))
    return found


def look():
    """Every entry, with all that can be told of it."""
    found, names, linked = {}, {}, {}
    for directory, below, files in os.walk(TOP):
        below.sort()  # links are told by the first of their names
        for name in [".", *sorted(files), *(one for one in below if os.path.islink(f"{directory}/{one}"))]:
            path = os.path.normpath(f"{directory}/{name}")
            status = os.lstat(path)
            entry = [status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns]
            if not stat.S_ISDIR(status.st_mode):
                entry += [status.st_size, status.st_nlink]
                if status.st_nlink > 1:
                    linked[path] = names.setdefault((status.st_dev, status.st_ino), path)
            if stat.S_ISLNK(status.st_mode):
                entry.append(os.readlink(path))
            if stat.S_ISREG(status.st_mode):
                # That of others is changed by this look at them.
                entry.append(status.st_atime_ns)
                fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
                entry.append(extents(fd, status.st_size))
                entry.append(hashlib.md5(os.pread(fd, 1 << 20, 0)).hexdigest())
                os.close(fd)
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                entry.append([(name, os.getxattr(path, name).decode()) for name in os.listxattr(path)])
            found[path] = entry
    return {"entries": found, "linked": linked}


# --- one instant ------------------------------------------------------------------------------------------


class Counter(threading.Thread):
    """Puts one number into memory, a file, shared memory and a pipe, in this order, over and over."""

    def __init__(self):
        super().__init__(daemon=True)
        self.value = 0
        self.file = os.open(place("counter"), os.O_RDWR | os.O_CREAT, 0o600)
        shared = os.open(place("shared"), os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(shared, 4096)
        self.area = mmap.mmap(shared, 4096)
        os.close(shared)
        self.reader, self.writer = os.pipe()
        os.write(self.writer, bytes(8))
        os.pwrite(self.file, bytes(8), 0)
        os.close(os.open(place("made0"), os.O_CREAT | os.O_WRONLY))
        self.wrong = []
        self.going = True
        self.start()

    def compare(self, what, found):
        if found != self.value.to_bytes(8, "little"):
            self.wrong.append([what, self.value, int.from_bytes(found, "little")])

    def run(self):
        while self.going:
            # Each is compared right before it is changed: else the change would hide what was wrong.
            number = self.value + 1
            after = number.to_bytes(8, "little")
            self.compare("file", os.pread(self.file, 8, 0))
            os.pwrite(self.file, after, 0)
            self.compare("shared", self.area[:8])
            self.area[:8] = after
            self.compare("pipe", os.read(self.reader, 8))
            os.write(self.writer, after)
            self.value = number
            path = place(f"made{number % 50}")
            if number % 100 < 50:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
            else:
                os.unlink(path)

    def stop(self):
        """All of it, once it stands: the names that are there, and the four numbers."""
        self.going = False
        self.join()
        names = sum(os.path.exists(place(f"made{number}")) for number in range(50))
        expected = self.value % 100 + 1 if self.value % 100 < 50 else 99 - self.value % 100
        numbers = [
            self.value,
            int.from_bytes(os.pread(self.file, 8, 0), "little"),
            int.from_bytes(self.area[:8], "little"),
            int.from_bytes(os.read(self.reader, 8), "little"),
        ]
        os.write(self.writer, numbers[0].to_bytes(8, "little"))
        return {"wrong": self.wrong, "numbers": numbers, "names": [names, expected]}


counters = []


def answer(asked):
    """What to say to it."""
    if asked == "look":
        return look()
    if asked == "begin":
        counters.append(Counter())
        return None
    if asked == "stop":
        return counters.pop().stop()
    for name, *arguments in asked:
        with contextlib.suppress(OSError, ValueError):
            DOES[name](*arguments)
    return None


if __name__ == "__main__":
    print("READY", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
