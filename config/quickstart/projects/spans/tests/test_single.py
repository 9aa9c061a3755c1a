import unittest

from spans import contains, length, merge_all, shift, split


class Single(unittest.TestCase):
    def test_length(self):
        self.assertEqual(length((3, 7)), 5)
        self.assertEqual(length((4, 4)), 1)

    def test_contains_ends(self):
        self.assertTrue(contains((3, 7), 3))
        self.assertTrue(contains((3, 7), 7))

    def test_contains_outside(self):
        self.assertFalse(contains((3, 7), 2))
        self.assertFalse(contains((3, 7), 8))

    def test_shift(self):
        self.assertEqual(shift((3, 7), 2), (5, 9))
        self.assertEqual(shift((3, 7), 0), (3, 7))

    def test_split(self):
        self.assertEqual(split((1, 9), 4), ((1, 3), (4, 9)))

    def test_merge_all_keeps_distant_spans(self):
        self.assertEqual(merge_all([(8, 9), (1, 2)]), [(1, 2), (8, 9)])

    def test_merge_all_joins_neighbours(self):
        self.assertEqual(merge_all([(3, 5), (1, 2)]), [(1, 5)])
        self.assertEqual(merge_all([(1, 4), (2, 3)]), [(1, 4)])

    def test_merge_all_empty(self):
        self.assertEqual(merge_all([]), [])


if __name__ == "__main__":
    unittest.main()
