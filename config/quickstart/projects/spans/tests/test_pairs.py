import unittest

from spans import common, gap, join, overlaps, touches


class Pairs(unittest.TestCase):
    def test_overlaps_shares_one_point(self):
        self.assertTrue(overlaps((1, 3), (3, 5)))
        self.assertTrue(overlaps((3, 5), (1, 3)))

    def test_overlaps_apart(self):
        self.assertFalse(overlaps((1, 2), (3, 5)))
        self.assertFalse(overlaps((3, 5), (1, 2)))

    def test_overlaps_inside(self):
        self.assertTrue(overlaps((1, 9), (4, 5)))

    def test_touches_next(self):
        self.assertTrue(touches((1, 2), (3, 5)))
        self.assertTrue(touches((3, 5), (1, 2)))

    def test_touches_not_when_apart(self):
        self.assertFalse(touches((1, 2), (4, 5)))
        self.assertFalse(touches((1, 2), (2, 5)))

    def test_join(self):
        self.assertEqual(join((1, 4), (3, 9)), (1, 9))
        self.assertEqual(join((3, 9), (1, 4)), (1, 9))

    def test_common(self):
        self.assertEqual(common((1, 4), (3, 9)), (3, 4))
        self.assertEqual(common((1, 4), (4, 9)), (4, 4))

    def test_common_none(self):
        self.assertIsNone(common((1, 2), (4, 9)))

    def test_gap(self):
        self.assertEqual(gap((1, 2), (5, 6)), 2)
        self.assertEqual(gap((1, 2), (3, 6)), 0)

    def test_gap_of_overlapping(self):
        self.assertEqual(gap((1, 4), (3, 6)), 0)


if __name__ == "__main__":
    unittest.main()
