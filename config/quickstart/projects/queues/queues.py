"""A bounded queue and a few things done with queues."""


class Queue:
    """First in, first out; holds at most `limit` items."""

    def __init__(self, limit):
        self.limit = limit
        self.items = []

    def size(self):
        """Count the items."""
        return len(self.items)

    def is_full(self):
        """Tell whether no item fits any more."""
        return len(self.items) >= self.limit

    def is_empty(self):
        """Tell whether there is no item."""
        return not self.items

    def push(self, item):
        """Add an item at the end; tell whether it fitted."""
        if self.is_full():
            return False
        self.items.append(item)
        return True

    def pull(self):
        """Take the first item, or None."""
        if self.is_empty():
            return None
        return self.items.pop(0)

    def room(self):
        """Count the items that still fit."""
        return self.limit - len(self.items)

    def peek_last(self):
        """Give the last item without taking it, or None."""
        if not self.items:
            return None
        return self.items[len(self.items) - 1]


def drain(queue, count):
    """Take up to count items."""
    taken = []
    while len(taken) < count and not queue.is_empty():
        taken.append(queue.pull())
    return taken


def move(source, target):
    """Move items while both sides allow; count them."""
    moved = 0
    while not source.is_empty() and not target.is_full():
        target.push(source.pull())
        moved = moved + 1
    return moved


def shorter(a, b):
    """Give the queue with fewer items; the first when equal."""
    if a.size() <= b.size():
        return a
    return b


def load(queue):
    """Give the used part of a queue in percent."""
    return queue.size() * 100 // queue.limit


def position(queue, item):
    """Give the place of an item in line, counted from 1, or 0."""
    if item not in queue.items:
        return 0
    return queue.items.index(item) + 1


def is_busy(queue):
    """A queue is busy when full or more than 5 items wait."""
    return queue.is_full() or queue.size() > 5
