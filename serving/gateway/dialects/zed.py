"""Zed, whose requests are OpenAI's: it sends no feedback, so only its User-Agent identifies it."""

from serving.gateway.dialects.base import Dialect

ZED = Dialect(name="zed", agent="zed")
