import unittest

from textkit import center, column, indent, is_blank, shorten


class Lines(unittest.TestCase):
    def test_is_blank(self):
        self.assertTrue(is_blank("  "))
        self.assertFalse(is_blank(" x"))

    def test_shorten_fits(self):
        self.assertEqual(shorten("abcde", 5), "abcde")
        self.assertEqual(shorten("abc", 5), "abc")

    def test_shorten_cuts(self):
        self.assertEqual(shorten("abcdef", 5), "abc..")

    def test_center_even(self):
        self.assertEqual(center("ab", 6), "  ab  ")

    def test_center_odd(self):
        self.assertEqual(center("ab", 5), " ab  ")

    def test_indent(self):
        self.assertEqual(indent("a\n\nb", 2), "  a\n\n  b")

    def test_column_first_line(self):
        self.assertEqual(column("abc", 0), 1)
        self.assertEqual(column("abc", 2), 3)

    def test_column_next_line(self):
        self.assertEqual(column("ab\ncd", 3), 1)
        self.assertEqual(column("ab\ncd", 4), 2)


if __name__ == "__main__":
    unittest.main()
