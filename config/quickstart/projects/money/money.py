"""Amounts of money in whole cents."""


def from_parts(units, cents):
    """Make an amount from units and cents."""
    return units * 100 + cents


def units(amount):
    """Give the whole units of an amount."""
    return amount // 100


def show(amount):
    """Write an amount with two digits behind the dot."""
    return f"{amount // 100}.{amount % 100:02d}"


def net(gross, discount):
    """Take a discount off a price; a price is never below 0."""
    return max(gross - discount, 0)


def with_tax(price, percent):
    """Add a tax in percent."""
    tax = price * percent // 100
    return price + tax


def can_pay(purse, price):
    """Tell whether the purse holds enough."""
    return purse >= price


def is_free_shipping(total, member):
    """Members ship free; so do orders from 50 units on."""
    return member or total >= 5000


def share(amount, people):
    """Split an amount; the first ones get the cents left over."""
    each = amount // people
    rest = amount % people
    return [each + 1 if i < rest else each for i in range(people)]


def cheapest(prices):
    """Give the lowest price, or None when there is no price."""
    if not prices:
        return None
    return min(prices)


def balance(entries):
    """Sum up entries such as ("in", 5) and ("out", 3)."""
    total = 0
    for kind, amount in entries:
        if kind == "in":
            total = total + amount
        else:
            total -= amount
    return total


def round_up(amount, step):
    """Round an amount up to a multiple of the step."""
    return (amount + step - 1) // step * step
