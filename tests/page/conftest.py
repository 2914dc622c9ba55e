"""Half of the tests, so that two processes share them: INFERD_PAGE_HALF is 0 or 1."""

import os


def pytest_collection_modifyitems(config, items):
    half = os.environ.get("INFERD_PAGE_HALF")
    if half:
        left_out = items[1 - int(half)::2]
        items[:] = items[int(half)::2]
        config.hook.pytest_deselected(items=left_out)
