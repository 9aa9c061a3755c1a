import unittest

from graph import add_edge, has_edge, in_degree, is_isolated, is_mutual, is_source, out_degree

ROADS = {"a": ["b", "c"], "b": ["a"], "c": [], "d": ["a"], "e": []}


class Edges(unittest.TestCase):
    def test_has_edge(self):
        self.assertTrue(has_edge(ROADS, "a", "c"))
        self.assertFalse(has_edge(ROADS, "c", "a"))

    def test_add_edge_once(self):
        self.assertEqual(add_edge({"a": ["b"]}, "a", "b"), {"a": ["b"]})

    def test_add_edge_new(self):
        self.assertEqual(add_edge({}, "a", "b"), {"a": ["b"]})

    def test_out_degree(self):
        self.assertEqual(out_degree(ROADS, "a"), 2)
        self.assertEqual(out_degree(ROADS, "x"), 0)

    def test_in_degree(self):
        self.assertEqual(in_degree(ROADS, "a"), 2)
        self.assertEqual(in_degree(ROADS, "d"), 0)

    def test_is_source(self):
        self.assertTrue(is_source(ROADS, "d"))
        self.assertFalse(is_source(ROADS, "a"))
        self.assertFalse(is_source(ROADS, "e"))

    def test_is_isolated(self):
        self.assertTrue(is_isolated(ROADS, "e"))
        self.assertFalse(is_isolated(ROADS, "c"))
        self.assertFalse(is_isolated({"p": ["q"], "q": ["p"]}, "p"))

    def test_is_mutual(self):
        self.assertTrue(is_mutual(ROADS, "a", "b"))
        self.assertFalse(is_mutual(ROADS, "a", "c"))
        self.assertFalse(is_mutual(ROADS, "c", "a"))


if __name__ == "__main__":
    unittest.main()
