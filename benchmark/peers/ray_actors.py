"""Ray's actors; one JSON request a line, one JSON answer a line.

* measure: asks at 1 and 64 outstanding, messages one way, bytes; processor time is the driver's and the actor's together, without
  Ray's own processes (raylet, control store);
* spawn: actors made until each has answered, and the memory of each: the proportional set of its process;
* end: shuts Ray down.

The actor is a plain one (a method at a time): Ray's quickest. Answers are got in the order of the questions, which is the order
in which such an actor gives them, so that the driver waits for one at a time.
"""

import collections
import json
import os
import sys
import time

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_worker_niceness"] = "0"  # else its actors stand behind all others on a machine that is used

import ray  # noqa: E402: reads its environment when it is imported

STORE_BYTES = 256 << 20
BULK_WINDOW = 8


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self):
        self.notes = 0

    def echo(self, payload):
        return payload

    def take(self, payload):
        return len(payload)

    def note(self, payload):
        self.notes += 1

    def taken_notes(self):
        notes, self.notes = self.notes, 0
        return notes

    def niceness(self):
        return os.nice(0)

    def processor_s(self):
        return time.process_time()

    def memory_kib(self):
        with open("/proc/self/smaps_rollup") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))


def processor_s(worker):
    return time.process_time() + ray.get(worker.processor_s.remote())


def windowed(method, payload, expected, count, window):
    """Microseconds of each call, and seconds in all."""
    waiting, microseconds = collections.deque(), []

    def take_one():
        asked, reference = waiting.popleft()
        assert ray.get(reference) == expected
        microseconds.append((time.perf_counter() - asked) * 1e6)

    began = time.perf_counter()
    for _ in range(count):
        if len(waiting) == window:
            take_one()
        waiting.append((time.perf_counter(), method.remote(payload)))
    while waiting:
        take_one()
    return sorted(microseconds), time.perf_counter() - began


def at(values, fraction):
    return values[round((len(values) - 1) * fraction)]


def measure(worker, request):
    answer = {}
    payload = bytes(request["payload_bytes"])
    for window, count in request["asks"]:
        before = processor_s(worker)
        microseconds, wall_s = windowed(worker.echo, payload, payload, count, window)
        used = processor_s(worker) - before
        answer[f"ask_{window}_p50_us"] = at(microseconds, 0.5)
        answer[f"ask_{window}_p99_us"] = at(microseconds, 0.99)
        answer[f"ask_{window}_processor_us"] = used * 1e6 / count
        answer[f"ask_{window}_per_s"] = count / wall_s
    count = request["notes"]
    began = time.perf_counter()
    for _ in range(count):
        worker.note.remote(payload)
    assert ray.get(worker.taken_notes.remote()) == count
    answer["notes_per_s"] = count / (time.perf_counter() - began)
    for size, count in request["bulk"]:
        payload = bytes(size)
        _, wall_s = windowed(worker.take, payload, size, count, BULK_WINDOW)
        answer[f"bulk_{size}_mb_per_s"] = size * count / wall_s / 1e6
    return answer


def spawn(count):
    began = time.perf_counter()
    workers = [Worker.remote() for _ in range(count)]
    ray.get([worker.taken_notes.remote() for worker in workers])
    wall_s = time.perf_counter() - began
    memory_kib = ray.get([worker.memory_kib.remote() for worker in workers])
    return {"per_s": count / wall_s, "memory_kib": sum(memory_kib) / count}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's processes talk on what they inherit
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        logging_level="ERROR",
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    worker = Worker.remote()
    assert ray.get(worker.niceness.remote()) == os.nice(0)
    print(json.dumps({"name": f"Ray {ray.__version__}"}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "measure":
            answer = measure(worker, request)
        elif request["do"] == "spawn":
            answer = spawn(request["count"])
        else:
            ray.shutdown()
            answer = {}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
