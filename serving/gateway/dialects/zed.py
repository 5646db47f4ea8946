"""Zed, whose requests are OpenAI's: it sends no feedback, so it is told apart by its User-Agent alone."""

from serving.gateway.dialects.base import Dialect

ZED = Dialect(name="zed", agent="zed/")
