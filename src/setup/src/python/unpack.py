"""Unpacks what of the wheels a build and a run on a CPU need: unpack.py DIRECTORY WHEEL...

Prints "total BYTES" and "at BYTES". The wheels hold the whole CUDA build; its CPU half loads with two small libraries beside it.
"""

import os
import shutil
import sys
import zipfile

LIBRARIES = {
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libc10.so",
    "torch/lib/libgomp.so.1",
    "nvidia/cu13/lib/libcudart.so.13",
    "nvidia/cu13/lib/libcupti.so.13",
}


def target(name):
    if name in LIBRARIES:
        return os.path.join("lib", os.path.basename(name))
    if name.startswith("torch/include/") and not name.endswith("/") and ".." not in name.split("/"):
        return name[len("torch/") :]
    return None


def main(directory, wheels):
    plan = []
    for wheel in wheels:
        archive = zipfile.ZipFile(wheel)
        plan += [(archive, entry, target(entry.filename)) for entry in archive.infolist() if target(entry.filename)]
    missing = LIBRARIES - {entry.filename for _, entry, _ in plan}
    if missing:
        print("the wheels lack " + ", ".join(sorted(missing)), file=sys.stderr)
        return 3
    print("total", sum(entry.file_size for _, entry, _ in plan), flush=True)
    at, told = 0, 0
    for archive, entry, name in plan:
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with archive.open(entry) as source, open(path, "wb") as made:
            shutil.copyfileobj(source, made, 1 << 20)
        at += entry.file_size
        if at - told >= 1 << 20:
            print("at", at, flush=True)
            told = at
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
