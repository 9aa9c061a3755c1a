import unittest

from matrix import add, dot, identity, multiply, scale, trace

A = [[1, 2], [3, 4]]


class Arithmetic(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(A, [[1, 1], [2, 2]]), [[2, 3], [5, 6]])

    def test_scale(self):
        self.assertEqual(scale(A, 3), [[3, 6], [9, 12]])

    def test_trace(self):
        self.assertEqual(trace(A), 5)

    def test_identity(self):
        self.assertEqual(identity(2), [[1, 0], [0, 1]])

    def test_dot(self):
        self.assertEqual(dot([1, 2, 3], [4, 5, 6]), 32)

    def test_multiply(self):
        self.assertEqual(multiply(A, [[0, 1], [1, 0]]), [[2, 1], [4, 3]])
        self.assertEqual(multiply(A, [[1], [1]]), [[3], [7]])


if __name__ == "__main__":
    unittest.main()
