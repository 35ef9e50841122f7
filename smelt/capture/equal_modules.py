"""Which compiled modules may run what was compiled for another one: blocks of one class, compiled one by one.

Their sessions try each other's cache entries before they capture: guards decide whether an entry fits, as they do
among the calls of one module.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch import nn

from smelt.base.torch_private import ddp_bucket_bytes

if TYPE_CHECKING:
    from smelt.capture.session import Session

_Known = tuple["weakref.ref[nn.Module]", "weakref.ref[Session]"]
_by_class: weakref.WeakKeyDictionary[type, list[_Known]] = weakref.WeakKeyDictionary()


def enter(module: nn.Module, session: Session) -> None:
    """A session compiles this module from now on."""
    known = [each for each in _by_class.get(type(module), []) if each[0]() is not None and each[1]() is not None]
    own = weakref.ref(module)
    _by_class[type(module)] = [*known, (own, weakref.ref(session))]
    mine = weakref.ref(session)
    session.others = lambda: _others(own, mine)


def _others(own: weakref.ref[nn.Module], mine: weakref.ref[Session]) -> list[Session]:
    """Sessions of other modules of the class, all alive, that compile in the same way."""
    module, session = own(), mine()
    found: list[Session] = []
    if module is None or session is None or ddp_bucket_bytes():  # DDP wants a backward in stages of its own
        return found
    for other, owner in _by_class.get(type(module), ()):
        giver = owner()
        if other() is None or other() is module or giver is None or giver is session:
            continue
        if giver.compile_graph is session.compile_graph and giver.options == session.options:
            found.append(giver)
    return found
