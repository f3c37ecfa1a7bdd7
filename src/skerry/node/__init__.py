"""The daemon of one host: images -> rootfs plan -> backend -> instance; lifecycle, journal, API."""
