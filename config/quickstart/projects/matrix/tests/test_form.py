import unittest

from matrix import corner, count_above, is_square, is_symmetric, same_shape, shape, spread, transpose


class Form(unittest.TestCase):
    def test_shape(self):
        self.assertEqual(shape([[1, 2, 3], [4, 5, 6]]), (2, 3))

    def test_shape_of_nothing(self):
        self.assertEqual(shape([]), (0, 0))

    def test_same_shape(self):
        self.assertTrue(same_shape([[1, 2]], [[3, 4]]))
        self.assertFalse(same_shape([[1, 2]], [[3], [4]]))

    def test_is_square(self):
        self.assertTrue(is_square([[1, 2], [3, 4]]))
        self.assertFalse(is_square([[1, 2]]))

    def test_transpose(self):
        self.assertEqual(transpose([[1, 2, 3]]), [[1], [2], [3]])

    def test_is_symmetric(self):
        self.assertTrue(is_symmetric([[1, 2], [2, 1]]))
        self.assertFalse(is_symmetric([[1, 2], [3, 1]]))
        self.assertFalse(is_symmetric([[1, 2]]))

    def test_spread(self):
        self.assertEqual(spread([[1, 9], [4, 3]]), 8)

    def test_corner(self):
        self.assertEqual(corner([[1, 2, 3], [4, 5, 6]]), 6)

    def test_count_above(self):
        self.assertEqual(count_above([[1, 2], [3, 4]], 2), 2)
        self.assertEqual(count_above([[1, 2]], 5), 0)


if __name__ == "__main__":
    unittest.main()
