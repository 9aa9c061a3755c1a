import unittest

from graph import busiest, nodes, path_cost, reaches

LINE = {1: [2], 2: [3], 3: [], 4: [4, 1]}


class Walks(unittest.TestCase):
    def test_nodes(self):
        self.assertEqual(nodes({2: [1], 3: []}), [1, 2, 3])

    def test_reaches(self):
        self.assertTrue(reaches(LINE, 1, 3))
        self.assertTrue(reaches(LINE, 4, 2))

    def test_reaches_not(self):
        self.assertFalse(reaches(LINE, 3, 1))
        self.assertFalse(reaches(LINE, 1, 4))

    def test_busiest(self):
        self.assertEqual(busiest(LINE), 4)

    def test_busiest_takes_the_first(self):
        self.assertEqual(busiest({1: [2], 2: [1]}), 1)

    def test_busiest_of_nothing(self):
        self.assertIsNone(busiest({}))

    def test_path_cost(self):
        self.assertEqual(path_cost({(1, 2): 5, (2, 3): 7}, [1, 2, 3]), 12)
        self.assertEqual(path_cost({}, [1]), 0)


if __name__ == "__main__":
    unittest.main()
