"""Tags wheels for the platform: they carry static programs, and a module for other interpreters.

Everything else about the package is in pyproject.toml.
"""

import setuptools
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformDistribution(setuptools.Distribution):
    """A distribution whose files belong to one processor architecture."""

    def has_ext_modules(self) -> bool:
        """Say yes, so that files are laid out as platform-dependent."""
        return True


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3, since nothing in it is linked against one."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag: any Python, no ABI, this platform."""
        platform = super().get_tag()[2]
        return "py3", "none", platform


setuptools.setup(distclass=PlatformDistribution, cmdclass={"bdist_wheel": PlatformWheel})
