"""Runs rdma-core's test suite and prints a line for each test: its result and its name.

usage: run.py TESTS [options of the test suite], for example: run.py tests --dev rxe0

A result is pass, fail or skip. Each test runs in a process of its own, because some versions crash
when Python exits. Tests of other providers' devices are left out. Failures are explained on stderr.
"""
import os
import signal
import sys
import unittest

LIMIT = 300  # seconds for a test, for an emulated CPU
PROVIDERS = ('test_mlx5', 'test_efa', 'test_cuda', 'test_hns', 'test_irdma')


def tests_of(suite):
    for t in suite:
        if isinstance(t, unittest.TestSuite):
            yield from tests_of(t)
        else:
            yield t


def run(test):
    """Runs a test in a child process and returns its result."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIMIT)
        result = unittest.TestResult()
        unittest.TestSuite([test]).run(result)
        for _, text in result.errors + result.failures:
            print(test.id(), text, file=sys.stderr, flush=True)
        os._exit(0 if not result.wasSuccessful() else 2 if result.skipped else 1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        print(test.id(), 'ended by signal', os.WTERMSIG(status), file=sys.stderr, flush=True)
        return 'fail'
    return ('fail', 'pass', 'skip')[os.WEXITSTATUS(status)]


def main():
    folder = os.path.abspath(sys.argv.pop(1))
    sys.path[:0] = [folder, os.path.dirname(folder)]
    from args_parser import parser
    parser.parse_args()
    import importlib
    for name in sorted(os.listdir(folder)):
        if name.startswith('test_') and name.endswith('.py') and not name.startswith(PROVIDERS):
            module = importlib.import_module('tests.' + name[:-3])
            for test in tests_of(unittest.defaultTestLoader.loadTestsFromModule(module)):
                print(run(test), test.id(), flush=True)


main()
