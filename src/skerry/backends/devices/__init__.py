"""Devices that function calls may hold: who finds them, and who holds them now.

Providers look (`provider`, `nvidia`, `listed`); the ledger counts (`ledger`), without I/O and without a
clock. Nothing here opens a device: containers see one because the launcher makes its node in theirs.
"""
