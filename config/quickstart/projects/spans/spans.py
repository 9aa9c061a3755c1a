"""Spans of whole numbers, written as (first, last); both ends belong to the span."""


def length(span):
    """Count the points of a span."""
    first, last = span
    return last - first + 1


def contains(span, point):
    """Tell whether a point lies in the span, ends included."""
    first, last = span
    return first <= point <= last


def overlaps(a, b):
    """Tell whether two spans share a point."""
    return a[0] <= b[1] and b[0] <= a[1]


def touches(a, b):
    """Tell whether one span starts right behind the other."""
    return a[1] + 1 == b[0] or b[1] + 1 == a[0]


def join(a, b):
    """Give the smallest span around both."""
    first = min(a[0], b[0])
    last = max(a[1], b[1])
    return first, last


def common(a, b):
    """Give the span shared by both, or None."""
    first = max(a[0], b[0])
    last = min(a[1], b[1])
    if first > last:
        return None
    return first, last


def shift(span, step):
    """Move a span up by a step."""
    first, last = span
    return first + step, last + step


def split(span, point):
    """Cut a span in two; the point starts the second half."""
    first, last = span
    return (first, point - 1), (point, last)


def gap(a, b):
    """Count the points between two spans in order."""
    if overlaps(a, b):
        return 0
    return b[0] - a[1] - 1


def merge_all(spans):
    """Join the spans that overlap or touch; the result is sorted."""
    merged = []
    for span in sorted(spans):
        if merged and span[0] <= merged[-1][1] + 1:
            merged[-1] = join(merged[-1], span)
        else:
            merged.append(span)
    return merged
