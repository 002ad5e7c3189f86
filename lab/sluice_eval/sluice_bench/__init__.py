# SPDX-License-Identifier: Apache-2.0
"""Sends requests to servers with OpenAI's HTTP API at given times, and measures latencies and goodput.

The load is open: a request leaves at its time, however many answers are still under way. A run in which the generator itself
was late is void. The package needs Python's standard library, and matplotlib for pictures.
"""
__version__ = "1.0.0"
