"""Directed graphs as a dict from each node to the list of its successors."""


def nodes(graph):
    """List all nodes in order."""
    found = set(graph)
    for targets in graph.values():
        found.update(targets)
    return sorted(found)


def has_edge(graph, a, b):
    """Tell whether an edge leads from a to b."""
    return b in graph.get(a, [])


def add_edge(graph, a, b):
    """Add an edge once."""
    targets = graph.setdefault(a, [])
    if b not in targets:
        targets.append(b)
    return graph


def out_degree(graph, node):
    """Count the edges that leave a node."""
    return len(graph.get(node, []))


def in_degree(graph, node):
    """Count the edges that reach a node."""
    count = 0
    for targets in graph.values():
        if node in targets:
            count = count + 1
    return count


def is_source(graph, node):
    """Tell whether edges leave a node and none reaches it."""
    return out_degree(graph, node) > 0 and in_degree(graph, node) == 0


def is_isolated(graph, node):
    """Tell whether no edge leaves or reaches a node."""
    return out_degree(graph, node) + in_degree(graph, node) == 0


def is_mutual(graph, a, b):
    """Tell whether edges lead both ways."""
    return has_edge(graph, a, b) and has_edge(graph, b, a)


def reaches(graph, start, goal):
    """Tell whether a path leads from start to goal."""
    seen = set()
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node == goal:
            return True
        if node not in seen:
            seen.add(node)
            waiting.extend(graph.get(node, []))
    return False


def busiest(graph):
    """Give the first node with the most edges that leave it."""
    best = None
    for node in nodes(graph):
        if best is None or out_degree(graph, node) > out_degree(graph, best):
            best = node
    return best


def path_cost(costs, path):
    """Add up the costs of the steps of a path."""
    total = 0
    for i in range(len(path) - 1):
        total += costs[path[i], path[i + 1]]
    return total
