"""Hooks that run when the group has failed."""

from __future__ import annotations

import threading

from shim_harness import PEER_FAILURE, fake, raises, scenario
from shim_hooks import another, raising, unraisable


@scenario
def abort_hooks_run_once_when_the_group_fails() -> None:
    mine = another()
    calls: list[str] = []
    mine.register_abort_hook(1, lambda: calls.append("first"))
    mine.register_abort_hook(2, raising)
    mine.register_abort_hook(3, lambda: calls.append("third"))
    mine.register_abort_hook(4, lambda: calls.append("gone"))
    mine.unregister_abort_hook(4)
    mine.unregister_abort_hook(5)
    raises(RuntimeError, lambda: mine.register_abort_hook(1, raising), "abort hook 1 is registered already")
    with unraisable() as seen:
        mine.abort()
        mine.abort()
    assert calls == ["first", "third"]
    assert seen == ["an abort hook: the hook's own"]
    mine.shutdown()
    assert calls == ["first", "third"]


@scenario
def abort_hook_may_unregister_itself_and_shut_down() -> None:
    mine = another()
    calls: list[int] = []

    def hook() -> None:
        calls.append(1)
        mine.unregister_abort_hook(1)
        mine.shutdown()

    mine.register_abort_hook(1, hook)
    mine.abort()
    assert calls == [1]


@scenario
def abort_hooks_do_not_run_when_a_group_ends() -> None:
    mine = another()
    calls: list[int] = []
    mine.register_abort_hook(1, lambda: calls.append(1))
    mine.shutdown()
    mine.abort()
    assert calls == []
    mine.register_abort_hook(2, lambda: calls.append(2))
    del mine
    assert calls == []


@scenario
def abort_hook_of_a_failed_group_hears_nothing() -> None:
    mine = another()
    fake.fake_group_status(PEER_FAILURE)
    calls: list[int] = []
    mine.register_abort_hook(1, lambda: calls.append(1))
    mine.abort()
    mine.shutdown()
    assert calls == []


@scenario
def abort_hook_on_a_thread_that_python_does_not_know() -> None:
    mine = another()
    threads: list[str] = []
    mine.register_abort_hook(1, lambda: threads.append(threading.current_thread().name))
    fake.fake_fail_group_elsewhere(PEER_FAILURE)
    assert len(threads) == 1
    assert threads[0] != threading.main_thread().name
    mine.shutdown()
