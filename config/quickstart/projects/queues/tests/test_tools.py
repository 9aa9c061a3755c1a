import unittest

from queues import Queue, drain, is_busy, load, move, position, shorter


def filled(limit, *items):
    queue = Queue(limit)
    queue.items.extend(items)
    return queue


class Tools(unittest.TestCase):
    def test_drain_some(self):
        self.assertEqual(drain(filled(5, 1, 2, 3), 2), [1, 2])

    def test_drain_all(self):
        self.assertEqual(drain(filled(5, 1, 2), 4), [1, 2])

    def test_move(self):
        source, target = filled(5, 1, 2, 3), filled(2)
        self.assertEqual(move(source, target), 2)
        self.assertEqual(target.items, [1, 2])

    def test_move_from_empty(self):
        self.assertEqual(move(filled(2), filled(2)), 0)

    def test_shorter(self):
        a, b = filled(3, 1), filled(3, 1, 2)
        self.assertIs(shorter(a, b), a)
        self.assertIs(shorter(b, a), a)

    def test_shorter_when_equal(self):
        a, b = filled(3, 1), filled(3, 2)
        self.assertIs(shorter(a, b), a)

    def test_load(self):
        self.assertEqual(load(filled(4, 1)), 25)

    def test_position(self):
        self.assertEqual(position(filled(4, 7, 8), 8), 2)
        self.assertEqual(position(filled(4, 7, 8), 9), 0)

    def test_is_busy(self):
        self.assertTrue(is_busy(filled(2, 1, 2)))
        self.assertTrue(is_busy(filled(9, 1, 2, 3, 4, 5, 6)))
        self.assertFalse(is_busy(filled(9, 1, 2, 3, 4, 5)))


if __name__ == "__main__":
    unittest.main()
