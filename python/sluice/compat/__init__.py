"""Functions of other packages, with their signatures and return values, run by this library.

Each calls the original where the library refuses, and says so: :mod:`sluice.compat.fla`,
:mod:`sluice.compat.mamba_ssm`.
"""
