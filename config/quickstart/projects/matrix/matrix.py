"""Matrices of numbers as lists of rows."""


def shape(rows):
    """Give the number of rows and of columns."""
    if not rows:
        return 0, 0
    return len(rows), len(rows[0])


def same_shape(a, b):
    """Tell whether two matrices have the same shape."""
    return shape(a) == shape(b)


def is_square(rows):
    """Tell whether there are as many rows as columns."""
    height, width = shape(rows)
    return height == width


def add(a, b):
    """Add two matrices."""
    return [[x + y for x, y in zip(r, s)] for r, s in zip(a, b)]


def scale(rows, factor):
    """Multiply each number by a factor."""
    return [[x * factor for x in row] for row in rows]


def transpose(rows):
    """Turn rows into columns."""
    return [list(column) for column in zip(*rows)]


def identity(size):
    """Make the identity matrix."""
    return [[int(i == j) for j in range(size)] for i in range(size)]


def trace(rows):
    """Add up the diagonal."""
    total = 0
    for i in range(len(rows)):
        total = total + rows[i][i]
    return total


def multiply(a, b):
    """Multiply two matrices."""
    columns = transpose(b)
    return [[dot(row, column) for column in columns] for row in a]


def dot(a, b):
    """Multiply two vectors."""
    return sum(x * y for x, y in zip(a, b))


def is_symmetric(rows):
    """Tell whether a square matrix equals its transpose."""
    return is_square(rows) and transpose(rows) == rows


def spread(rows):
    """Give the distance of the largest number from the smallest."""
    top = max(max(row) for row in rows)
    low = min(min(row) for row in rows)
    return top - low


def corner(rows):
    """Give the number in the last row and column."""
    height, width = shape(rows)
    return rows[height - 1][width - 1]


def count_above(rows, limit):
    """Count the numbers above a limit."""
    count = 0
    for row in rows:
        for x in row:
            if x > limit:
                count = count + 1
    return count
