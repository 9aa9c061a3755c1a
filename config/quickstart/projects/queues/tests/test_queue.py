import unittest

from queues import Queue


def filled(limit, *items):
    queue = Queue(limit)
    queue.items.extend(items)
    return queue


class OneQueue(unittest.TestCase):
    def test_size(self):
        self.assertEqual(filled(3, 1, 2).size(), 2)

    def test_is_full(self):
        self.assertTrue(filled(2, 1, 2).is_full())
        self.assertFalse(filled(2, 1).is_full())

    def test_is_empty(self):
        self.assertTrue(filled(2).is_empty())
        self.assertFalse(filled(2, 1).is_empty())

    def test_push(self):
        queue = filled(2, 1)
        self.assertTrue(queue.push(5))
        self.assertEqual(queue.items, [1, 5])

    def test_push_when_full(self):
        queue = filled(1, 1)
        self.assertFalse(queue.push(5))
        self.assertEqual(queue.items, [1])

    def test_pull(self):
        queue = filled(3, 7, 8)
        self.assertEqual(queue.pull(), 7)
        self.assertEqual(queue.items, [8])

    def test_pull_from_empty(self):
        self.assertIsNone(filled(2).pull())

    def test_room(self):
        self.assertEqual(filled(3, 1).room(), 2)

    def test_peek_last(self):
        self.assertEqual(filled(3, 1, 2).peek_last(), 2)
        self.assertIsNone(filled(3).peek_last())


if __name__ == "__main__":
    unittest.main()
