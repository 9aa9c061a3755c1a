"""Small tools for plain text."""


def is_blank(line):
    """Tell whether a line holds nothing but blanks."""
    return line.strip() == ""


def count_words(text):
    """Count the words of a text."""
    return len(text.split())


def longest(words):
    """Give the first of the longest words."""
    best = ""
    for word in words:
        if len(word) > len(best):
            best = word
    return best


def shorten(text, width):
    """Cut a text to the width; a cut is marked by two dots."""
    if len(text) <= width:
        return text
    return text[: width - 2] + ".."


def center(text, width):
    """Put a text in the middle of a line; the odd blank goes right."""
    room = width - len(text)
    left = room // 2
    return " " * left + text + " " * (room - left)


def indent(text, depth):
    """Move the lines that are not blank to the right."""
    lines = []
    for line in text.split("\n"):
        if not is_blank(line):
            line = " " * depth + line
        lines.append(line)
    return "\n".join(lines)


def is_palindrome(text):
    """Tell whether the letters read the same backwards."""
    letters = [c for c in text.lower() if c.isalpha()]
    return letters == letters[::-1]


def is_name(word):
    """Tell whether a word is letters and digits, and no digit leads."""
    return word.isalnum() and not word[0].isdigit()


def column(text, position):
    """Give the column of a position in its line, counted from 1."""
    start = text.rfind("\n", 0, position) + 1
    return position - start + 1


def unique(words):
    """Drop the words seen before, whatever their case."""
    seen = set()
    kept = []
    for word in words:
        if word.lower() not in seen:
            seen.add(word.lower())
            kept.append(word)
    return kept
