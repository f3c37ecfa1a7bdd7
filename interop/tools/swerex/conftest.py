"""For tests that SWE-ReX marks as expected to fail: they are run and judged like all others."""


def pytest_configure(config):
    config.option.runxfail = True
