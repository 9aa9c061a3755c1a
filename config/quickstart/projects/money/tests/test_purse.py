import unittest

from money import balance, can_pay, cheapest, is_free_shipping, share


class Purse(unittest.TestCase):
    def test_can_pay_exactly(self):
        self.assertTrue(can_pay(100, 100))

    def test_can_pay(self):
        self.assertTrue(can_pay(200, 100))
        self.assertFalse(can_pay(99, 100))

    def test_free_shipping_for_members(self):
        self.assertTrue(is_free_shipping(100, True))

    def test_free_shipping_for_large_orders(self):
        self.assertTrue(is_free_shipping(5000, False))
        self.assertTrue(is_free_shipping(9000, False))

    def test_no_free_shipping(self):
        self.assertFalse(is_free_shipping(4999, False))

    def test_share(self):
        self.assertEqual(share(10, 3), [4, 3, 3])
        self.assertEqual(share(11, 3), [4, 4, 3])
        self.assertEqual(share(9, 3), [3, 3, 3])

    def test_cheapest(self):
        self.assertEqual(cheapest([3, 1, 2]), 1)

    def test_cheapest_of_nothing(self):
        self.assertIsNone(cheapest([]))

    def test_balance(self):
        self.assertEqual(balance([("in", 9), ("out", 2)]), 7)
        self.assertEqual(balance([]), 0)


if __name__ == "__main__":
    unittest.main()
