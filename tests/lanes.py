"""Which tests may run at once (`pytest -n`): those that look at the whole machine never do.

The leak census compares the state of the machine before and after, so whatever starts nodes or
launchers, makes groups or swap, or takes a census runs in one process, one test after the other. All
other tests keep to their own directories: they run beside, a file at a time.
"""

from __future__ import annotations

import pytest

MACHINE = (
    "tests/integration/",
    "tests/security/",
    "tests/conformance/test_container.py",
    "tests/unit/backends/",
    "tests/unit/density/",
    "tests/unit/testing/",
)
# Of those folders: what has objects, registries, file systems and archives only.
BESIDE = (
    "tests/integration/oci/test_oci_push.py",
    "tests/integration/oci/test_oci_refusals.py",
    "tests/integration/oci/test_oci_registry.py",
    "tests/integration/oci/test_oci_umoci.py",
    "tests/integration/test_blobs_over_s3.py",
    "tests/integration/test_images_overlay.py",
    "tests/integration/test_lazy_blobs.py",
    "tests/integration/test_s3_doctor.py",
    "tests/integration/test_s3_shared.py",
    "tests/integration/test_s3_store.py",
    "tests/integration/test_s3_tls.py",
    "tests/integration/test_store_shared.py",
    "tests/security/test_cheats_downloads.py",
    "tests/security/test_transfer_races.py",
)


def lane(nodeid: str) -> str:
    """Returns what a test shares its process and its turn with."""
    path = nodeid.partition("::")[0]
    return "machine" if path.startswith(MACHINE) and path not in BESIDE else path


def scheduler(config: pytest.Config, log):
    """Returns a scheduler that gives whole lanes to processes, the longest first."""
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return lane(nodeid)

    return Lanes(config, log)


def others(config: pytest.Config) -> list[str]:
    """Returns the names of the other processes of this run; none if there is only this one."""
    known = getattr(config, "workerinput", None)
    if known is None:
        return []
    workers = [f"gw{at}" for at in range(known["workercount"])]
    return [worker for worker in workers if worker != known["workerid"]]
