# SPDX-License-Identifier: Apache-2.0
"""Evaluates the answers of a language model: synthetic tasks and published benchmarks, under KV-cache recipes of Sluice."""
__version__ = "1.0.0"
