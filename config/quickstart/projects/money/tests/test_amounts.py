import unittest

from money import from_parts, net, round_up, show, units, with_tax


class Amounts(unittest.TestCase):
    def test_from_parts(self):
        self.assertEqual(from_parts(3, 50), 350)

    def test_units(self):
        self.assertEqual(units(350), 3)

    def test_show(self):
        self.assertEqual(show(350), "3.50")
        self.assertEqual(show(205), "2.05")

    def test_net(self):
        self.assertEqual(net(500, 200), 300)

    def test_net_is_never_negative(self):
        self.assertEqual(net(100, 200), 0)

    def test_with_tax(self):
        self.assertEqual(with_tax(200, 10), 220)

    def test_round_up(self):
        self.assertEqual(round_up(101, 5), 105)
        self.assertEqual(round_up(100, 5), 100)


if __name__ == "__main__":
    unittest.main()
