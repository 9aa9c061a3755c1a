import unittest

from textkit import count_words, is_name, is_palindrome, longest, unique


class Words(unittest.TestCase):
    def test_count_words(self):
        self.assertEqual(count_words("one two  three"), 3)
        self.assertEqual(count_words(""), 0)

    def test_longest(self):
        self.assertEqual(longest(["a", "bbb", "cc"]), "bbb")

    def test_longest_takes_the_first(self):
        self.assertEqual(longest(["aa", "bb"]), "aa")

    def test_is_palindrome(self):
        self.assertTrue(is_palindrome("Never odd or even"))
        self.assertFalse(is_palindrome("ab"))

    def test_is_name(self):
        self.assertTrue(is_name("a1"))
        self.assertFalse(is_name("1a"))
        self.assertFalse(is_name("a b"))

    def test_unique(self):
        self.assertEqual(unique(["a", "B", "A", "b", "c"]), ["a", "B", "c"])


if __name__ == "__main__":
    unittest.main()
