"""Schedulers may limit the threads of BLAS at the same time."""

from __future__ import annotations

from threadpoolctl import threadpool_info, threadpool_limits

from tuner.schedulers.shared.blas import one_thread


def threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_limits_that_overlap_end_with_the_last_one() -> None:
    with one_thread():
        pass  # loads the libraries that are counted below
    first, second = one_thread(), one_thread()
    with threadpool_limits(2, user_api="blas"):
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert threads() == {1}
        second.__exit__(None, None, None)
        assert threads() == {2}
