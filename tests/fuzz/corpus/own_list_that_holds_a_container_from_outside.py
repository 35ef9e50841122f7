# C code that is given a list of the program hands on that very list, also when a container from outside is in it.
import collections

import torch

Point = collections.namedtuple("Point", "x y")


def entry(t, table):
    made = [t + 1, table]
    point = Point(0, made)
    queue = collections.deque()
    queue.extend([made, (made, 3)])
    longest = max([[0], made], key=len)
    point.y.append(5)
    queue[0].append(6)
    queue[1][0][0] = 7
    made.append(table)
    held = {"own": made}
    listed = list(held.values())
    listed[0].append(queue[0] is made)
    table["new"] = len(point.y)
    return made, point, queue, longest, listed


def calls():
    yield (torch.ones(3), {"a": [1]})
    yield (torch.ones(3), {"a": [1]})
